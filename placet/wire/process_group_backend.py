"""Registers the wire as a backend of torch.distributed."""

from collections.abc import Callable

import torch.distributed as dist
from torch.distributed import ProcessGroup

from placet.torch_private.c10d import CreatorOptions, Store
from placet.wire.process_group import (
    GroupWire,
    Options,
    PlacetProcessGroup,
    SharedWire,
)

Connect = Callable[[Store, int, int, float, Options], GroupWire]
"""Connects ranks that meet in a store: (store, rank, num_ranks, seconds, options)"""


def register(connect: Connect, *, name: str = "placet") -> None:
    """Let `torch.distributed.init_process_group(name)` make groups on a wire.

    Args:
        connect: makes the process's wire, for its first group.
        name: of the backend.
    """

    def create(given: CreatorOptions, options: object) -> ProcessGroup:
        return _create(connect, given, options)

    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])


def _create(connect: Connect, given: CreatorOptions, chosen: object) -> ProcessGroup:
    world = dist.group.WORLD
    options = chosen if isinstance(chosen, Options) else None
    if isinstance(world, PlacetProcessGroup):
        shared = world.shared
        members = tuple(world.place.members[r] for r in given.global_ranks_in_group)
        options = options or world.options
    else:
        # The first group, or one beside a world of another backend: a wire of its own.
        options = options or Options()
        store = given.store
        rank, size, seconds = given.group_rank, given.group_size, given.timeout
        wire = connect(store, rank, size, seconds.total_seconds(), options)
        shared = SharedWire(wire)
        members = tuple(range(size))
    return PlacetProcessGroup(
        shared,
        members,
        given.store,
        name=str(given.group_id),
        timeout=given.timeout,
        options=options,
    )
