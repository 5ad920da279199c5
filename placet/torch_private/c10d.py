"""Private names of torch.distributed, and those that it exports without saying so."""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import (
    GroupName,
    _get_default_group,
    _get_default_store,
    _new_process_group_helper,
    _world,
)

__all__ = [
    "PrefixStore",
    "Store",
    "TCPStore",
    "default_store",
    "group_of",
    "set_bytes",
]


def default_store() -> Store:
    """The store through which the ranks of the default process group met."""
    return _get_default_store()


def group_of(ranks: Sequence[int], name: str, timeout: timedelta) -> ProcessGroup:
    """A process group made by its members alone, in the order given.

    Blocks until all members have called it. `torch.distributed.new_group` with
    `use_local_synchronization` names a group after how many groups *this* rank has, so
    members with different histories never meet (torch 2.13, `_hash_ranks_to_str`).

    Args:
        ranks: ranks of the default group, this one among them.
        name: equal on all members, used once.
        timeout: the deadline of the group's collectives, and of making it.
    """
    world = _get_default_group()
    backend, store = _world.pg_map[world]
    group, _ = _new_process_group_helper(
        len(ranks),
        ranks.index(world.rank()),
        list(ranks),
        backend,
        store,
        GroupName(name),
        timeout=timeout,
    )
    _world.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
    return cast(ProcessGroup, group)


def set_bytes(store: Store, key: str, value: bytes) -> None:
    """Store any bytes; the stubs say str, which torch would encode as UTF-8."""
    store.set(key, cast(str, value))
