"""The wires that benches compare, by name.

engine         placet's own engine, native core
engine-plain   the same with the core in Python
gloo           torch's collectives behind the same interface
"""

import itertools
from typing import Literal, TypeAlias, cast, get_args

import torch.distributed as dist

from placet.boxing.algorithms import choose
from placet.boxing.moves import Move
from placet.placement.cluster import Cluster
from placet.torch_private.c10d import Store, default_store
from placet.wire.c10d import C10dWire
from placet.wire.engine.connect import connect_engine
from placet.wire.engine.wire import EngineWire
from placet.wire.interface import Wire
from placet.wire.process_group import GroupWire
from placet.wire.process_group_backend import register
from placet.wire.torch_store import TorchStore

WireKind: TypeAlias = Literal["engine", "engine-plain", "gloo"]
KINDS: tuple[WireKind, ...] = get_args(WireKind)
TIMEOUT_SECONDS = 120.0
_index = itertools.count()


def open_wire(kind: WireKind) -> Wire:
    """A wire between all ranks of torch.distributed's default group.

    Args:
        kind: which; see the module.
    """
    if kind == "gloo":
        return C10dWire()
    return _engine(kind, default_store(), dist.get_rank(), dist.get_world_size())


def open_group(kind: WireKind) -> dist.ProcessGroup:
    """A process group of all ranks on such a wire, for programs of torch's own.

    Args:
        kind: which; see the module.
    """
    if kind == "gloo":
        backend = "gloo"
    else:
        backend = "placet"

        def connect(
            store: Store,
            rank: int,
            num_ranks: int,
            seconds: float,
            options: object,
        ) -> GroupWire:
            # Its futures can call back, which `Wire` does not promise.
            return cast(GroupWire, _engine(kind, store, rank, num_ranks))

        register(connect, name=backend)
    group: dist.ProcessGroup = dist.new_group(backend=backend)
    return group


def chosen(wire: Wire, move: Move) -> Move:
    """The move as a job of this machine submits it; gloo has one algorithm for each."""
    if not isinstance(wire, EngineWire):
        return move
    return choose(move, Cluster.here(wire.num_ranks))


def _engine(
    kind: WireKind,
    store: Store,
    rank: int,
    num_ranks: int,
) -> EngineWire:
    return connect_engine(
        TorchStore(store, f"bench/wire{next(_index)}"),
        rank,
        num_ranks,
        timeout_seconds=TIMEOUT_SECONDS,
        core="plain" if kind == "engine-plain" else "native",
        cluster=Cluster.here(num_ranks),
    )
