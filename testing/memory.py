"""The memory that one rank's step really holds, measured beside its prediction."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from placet.boxing.moves import Move
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.node import Node
from placet.program.refine import Refined
from placet.run.planned import PlannedStep
from placet.torch_private.dispatch import without_modes
from placet.torch_private.storages import LiveStorages
from placet.wire.check import result_size
from placet.wire.interface import Future, Traffic, Wire
from testing.ranks import run_threads


def measured_peaks(
    graph: Graph,
    division: Division,
    refined: Refined,
    states: Mapping[str, Tensor],
    batch: Sequence[Tensor],
) -> list[tuple[int, str]]:
    """The most bytes that each rank's storages had in a step, and at which node.

    Args:
        states: whole.
        batch: whole.
    """
    return run_threads(
        division.mesh.num_ranks, _measured, graph, division, refined, states, batch
    )


def _measured(
    wire: Wire,
    graph: Graph,
    division: Division,
    refined: Refined,
    states: Mapping[str, Tensor],
    batch: Sequence[Tensor],
) -> tuple[int, str]:
    watch = LiveStorages()
    step = _Placed(graph, division, refined, _Apart(wire))
    step.watch = watch
    parts = {
        name: step.cut(tensor, division.homes[name]).clone()
        for name, tensor in states.items()
    }
    for tensor in (*parts.values(), *batch):
        watch.hold(tensor)
    with watch:
        step(parts, batch)
    return watch.peak_bytes, watch.peak_place


class _Placed(PlannedStep):
    """A step that says at which node it is."""

    watch: LiveStorages

    def _fire(self, index: int, node: Node) -> None:
        self.watch.place = node.name
        PlannedStep._fire(self, index, node)


class _Apart(Wire):
    """A twin's wire on which ranks share no memory, as if in processes of their own.

    As the engine does, it makes room for an arrival when a move is submitted.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.rank, self.num_ranks = wire.rank, wire.num_ranks
        self.capabilities, self.cluster = wire.capabilities, wire.cluster

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> Future:
        room = out
        if room is None:
            room = payload.new_empty(result_size(move, self.rank))
        with without_modes():
            sent = payload.clone()
            future = self.wire.submit(move, sent, key=key, priority=priority)
        return _Copied(future, payload, room)

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        self.wire.prepare(groups)

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        return self.wire.exchange(value, key=key)

    def control_bytes(self) -> int:
        return self.wire.control_bytes()

    def close(self) -> None:
        self.wire.close()


class _Copied(Future):
    """An arrival in this rank's own memory; the payload is held until then."""

    def __init__(self, future: Future, payload: Tensor, room: Tensor) -> None:
        self.future, self.payload, self.room = future, payload, room

    def done(self) -> bool:
        return self.future.done()

    def wait(self) -> Tensor:
        self.payload = self.room.new_empty(0)
        with without_modes(), torch.no_grad():
            return self.room.copy_(self.future.wait())

    def traffic(self) -> Traffic:
        return self.future.traffic()
