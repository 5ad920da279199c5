"""Seconds of a boxing step when all groups of its axes move at once.

A group's move has stages (`placet.boxing.algorithms`); a stage costs

    rounds x (latency + extra messages) + busiest link's bytes / its rate + scratch

Alone, a group has the links for itself: by that price its algorithm is chosen, as
`algorithms.choose` does. All groups of a mesh share the links of hosts, so what a step
costs is the same with the flows of all groups on the busiest link.

Every term is linear in n, the bytes of the tensor that a group shares, so a step costs
fixed + per_byte x n, with coefficients that are found once for (axes, move, algorithm)
-> Links._line. Parts count as even, which is exact where they are, and the group counts
as the fullest one; all groups have their members on hosts in the pattern of the first
for the sake of blocks, but flows are counted on the hosts where they are.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from placet.boxing.algorithms import (
    MESSAGE_SECONDS,
    SCRATCH_BYTES_PER_S,
    Stage,
    all_reduce_algorithms,
    blocks_of,
    scatter_algorithms,
    stages,
)
from placet.boxing.counts import largest_part
from placet.boxing.moves import AllGather, AllReduce, Move, ReduceScatter
from placet.boxing.path import Step
from placet.placement.cluster import Cluster
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast

Kind: TypeAlias = Literal["reduce", "gather", "scatter", "exchange", "neighbours"]
Ints: TypeAlias = npt.NDArray[np.int64]

KINDS: dict[str, Kind] = {
    "partial-to-broadcast": "reduce",
    "split-to-broadcast": "gather",
    "partial-to-split": "scatter",
    "split-to-split": "exchange",
    "intersection": "neighbours",
}
"""The rules that move bytes, and what they move them by."""

_UNIT_ELEMENTS = 1 << 18
"""Of each chunk of a reference move: so many that rounding is nothing."""


class Line(NamedTuple):
    """What a group's move costs: fixed + per_byte x bytes; alone, and among all."""

    alone: tuple[float, float]
    together: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Links:
    """Prices of moves along the axes of a mesh.

    Args:
        mesh: its ranks are the cluster's.
        cluster: hosts and link classes.

    Raises:
        ValueError: on use, a rank that is not in the cluster.
    """

    mesh: Mesh
    cluster: Cluster

    @cached_property
    def _lines(self) -> dict[tuple[tuple[str, ...], Kind, str], Line]:
        return {}

    @cached_property
    def _blocks(self) -> dict[tuple[str, ...], tuple[Any, ...]]:
        return {}

    def step_seconds(self, step: Step) -> float:
        """What a step costs on the links; 0 where it moves nothing."""
        return sum(self.step_parts(step))

    def step_parts(self, step: Step) -> tuple[float, float]:
        """A step's latency, and how long it keeps the links busy; seconds."""
        kind = KINDS.get(step.rule.name)
        change = step.change
        if kind is None or not change.axes:
            return 0.0, 0.0
        if kind == "neighbours":
            received = step.rule.received_bytes(change)
            pairs = self._groups(change.axes).size
            return self._parts(change.axes, kind, received / pairs)
        shared = _without(change.src, change.axes)
        elements = sum(largest_part(shape, shared) for shape in change.shapes)
        return self._parts(change.axes, kind, elements * change.dtype.itemsize)

    def seconds(self, axes: tuple[str, ...], kind: Kind, num_bytes: float) -> float:
        """What moving n bytes a group costs, by the algorithm that a group chooses.

        Args:
            num_bytes: of what the group shares: a reduction's terms, all parts
                together, or, between neighbours, what each receives.
        """
        return sum(self._parts(axes, kind, num_bytes))

    def _parts(
        self, axes: tuple[str, ...], kind: Kind, num_bytes: float
    ) -> tuple[float, float]:
        """What does not depend on the bytes, and what does."""
        size = math.prod(self.mesh.size(axis) for axis in axes)
        if size == 1 or not num_bytes:
            return 0.0, 0.0
        lines = (
            self._line(axes, kind, algorithm)
            for algorithm in self._algorithms(axes, kind, num_bytes, size)
        )
        best = min(lines, key=lambda line: line.alone[0] + line.alone[1] * num_bytes)
        fixed, per_byte = best.together
        return fixed, per_byte * num_bytes

    def _algorithms(
        self, axes: tuple[str, ...], kind: Kind, num_bytes: float, size: int
    ) -> Iterator[str]:
        if kind in ("gather", "scatter"):
            yield from scatter_algorithms(size)
        elif kind == "reduce":
            yield from all_reduce_algorithms(num_bytes, size)
            for number, _ in enumerate(self._hierarchies(axes)):
                yield f"hierarchical {number}"
        else:
            yield "direct"

    def _hierarchies(self, axes: tuple[str, ...]) -> tuple[Any, ...]:
        if axes not in self._blocks:
            first = tuple(map(int, self._groups(axes)[0]))
            self._blocks[axes] = tuple(blocks_of(first, self.cluster))
        return self._blocks[axes]

    def _line(self, axes: tuple[str, ...], kind: Kind, algorithm: str) -> Line:
        key = axes, kind, algorithm
        if key not in self._lines:
            groups = self._groups(axes)
            found = list(self._flows(axes, kind, algorithm))
            self._lines[key] = Line(
                self._priced(found, groups[:1]), self._priced(found, groups)
            )
        return self._lines[key]

    def _groups(self, axes: tuple[str, ...]) -> Ints:
        """(groups, members): the ranks, members in the order of the axes."""
        mesh = self.mesh
        grid = np.array(mesh.ranks).reshape(mesh.sizes)
        where = [mesh.axis_index(axis) for axis in axes]
        last = range(len(mesh.sizes) - len(where), len(mesh.sizes))
        size = math.prod(mesh.sizes[i] for i in where)
        return np.moveaxis(grid, where, list(last)).reshape(-1, size)

    def _flows(
        self, axes: tuple[str, ...], kind: Kind, algorithm: str
    ) -> Iterator["_Flows"]:
        """The stages of a group's move of one byte, between members by position."""
        group = tuple(map(int, self._groups(axes)[0]))
        size = len(group)
        if kind == "neighbours":
            up = np.arange(size - 1)
            yield _Flows(1, 2, np.r_[up, up + 1], np.r_[up + 1, up], np.array(0.5), 0.0)
            return
        if algorithm == "exchange" or (algorithm == "direct" and kind != "reduce"):
            src, dst = np.nonzero(~np.eye(size, dtype=bool))
            weight = {"reduce": 1.0, "exchange": size**-2}.get(kind, 1 / size)
            waits = (size - 1) * weight if kind in ("reduce", "scatter") else 0.0
            yield _Flows(1, size - 1, src, dst, np.array(weight), waits)
            return
        move = self._reference(group, axes, kind, algorithm)
        total = _UNIT_ELEMENTS * size * move.dtype.itemsize
        place = {rank: i for i, rank in enumerate(group)}
        for stage in stages(move):
            yield _as_flows(stage, place, total)

    def _reference(
        self, group: tuple[int, ...], axes: tuple[str, ...], kind: Kind, algorithm: str
    ) -> Move:
        size, dtype = len(group), torch.float32
        counts = (_UNIT_ELEMENTS,) * size
        if kind == "gather":
            return AllGather(group, counts, dtype, chosen="ring")
        if kind == "scatter":
            return ReduceScatter(group, counts, dtype, algorithm="ring")
        total = _UNIT_ELEMENTS * size
        if algorithm.startswith("hierarchical"):
            blocks = self._hierarchies(axes)[int(algorithm.split()[1])]
            return AllReduce(
                group, total, dtype, algorithm="hierarchical", blocks=blocks
            )
        if algorithm == "doubling":
            return AllReduce(group, total, dtype, algorithm="doubling")
        if algorithm == "direct":
            return AllReduce(group, total, dtype, algorithm="direct")
        return AllReduce(group, total, dtype, algorithm="ring")

    def _priced(self, flows: Iterable["_Flows"], groups: Ints) -> tuple[float, float]:
        fixed, per_byte = 0.0, 0.0
        for stage in flows:
            latency, busiest = self._busiest(
                groups[:, stage.src], groups[:, stage.dst], stage.weight
            )
            extra = (stage.messages - 1) * MESSAGE_SECONDS
            fixed += stage.rounds * (latency + extra)
            per_byte += busiest + stage.scratch / SCRATCH_BYTES_PER_S
        return fixed, per_byte

    def _busiest(
        self, src: Ints, dst: Ints, weight: npt.NDArray[np.float64]
    ) -> tuple[float, float]:
        """The worst latency in use, and the most seconds that a link is busy."""
        place = self._place
        weights = np.broadcast_to(weight, src.shape).ravel()
        src, dst = src.ravel(), dst.ravel()
        here, there = place.host[src], place.host[dst]
        inside = here == there
        near = place.group[here] == place.group[there]
        link = np.where(
            inside, place.link[here], np.where(near, place.hosts, place.groups)
        )
        span = len(place.host) + len(place.group)
        busy = 0.0
        for rank, host in ((src, here), (dst, there)):
            end = np.where(inside, rank, len(place.host) + host)
            sums = np.bincount(link * span + end, weights)
            rates = place.rate[np.arange(len(sums)) // span]
            busy = max(busy, float((sums / rates).max()))
        return float(place.latency[link].max()), busy

    @cached_property
    def _place(self) -> "_Place":
        cluster = self.cluster
        if max(self.mesh.ranks) >= cluster.num_ranks:
            raise ValueError(
                f"{self.mesh!r} has rank {max(self.mesh.ranks)}; the cluster has "
                f"{cluster.num_ranks} ranks: give one with as many, or a smaller mesh"
            )
        names = [link.name for link in cluster.links]
        groups = [host.group for host in cluster.hosts]

        def index(name: str) -> int:
            return names.index(name) if name in names else 0

        return _Place(
            host=np.repeat(
                np.arange(len(groups)), [host.num_ranks for host in cluster.hosts]
            ),
            group=np.array([groups.index(group) for group in groups]),
            link=np.array([index(host.link) for host in cluster.hosts]),
            hosts=index(cluster.between_hosts),
            groups=index(cluster.between_groups),
            latency=np.array([link.latency_s for link in cluster.links]),
            rate=np.array([link.link_bytes_per_s for link in cluster.links]),
        )


class _Flows(NamedTuple):
    """A stage between members: who sends whom what share of the bytes."""

    rounds: int
    messages: int
    src: Ints
    dst: Ints
    weight: npt.NDArray[np.float64]
    scratch: float


class _Place(NamedTuple):
    """Ranks' hosts, hosts' groups and links, and what the link classes carry."""

    host: Ints
    group: Ints
    link: Ints
    hosts: int
    groups: int
    latency: npt.NDArray[np.float64]
    rate: npt.NDArray[np.float64]


def _as_flows(stage: Stage, place: dict[int, int], total: int) -> _Flows:
    rows = [(place[a], place[b], n / total) for a, b, n in stage.flows]
    src, dst, weight = (np.array(column) for column in zip(*rows, strict=True))
    return _Flows(
        stage.rounds, stage.messages, src, dst, weight, stage.scratch_bytes / total
    )


def _without(layout: Layout, axes: tuple[str, ...]) -> Layout:
    """The layout with B on some axes: what a group of theirs has together."""
    rows = zip(layout.mesh.axes, layout.placements, strict=True)
    placements = [Broadcast() if axis in axes else p for axis, p in rows]
    return Layout(layout.mesh, placements, layout.split_order)
