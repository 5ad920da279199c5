"""Divisions made by hand: what experts write, for tests of the program that they give.

    data parallel      guide = {"batch": S(0)}
    Megatron           guide = {r"up\\.weight": S(0), r"down\\.weight": S(1)}
    ZeRO level 3       homes S(0), boxed again for the backward    -> gathered_again

A guide says where an axis has states and batch; every operator then takes, in order,
the signature that its inputs reach with the fewest bytes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from placet.boxing.path import mean_bytes
from placet.cost.compute import is_divided
from placet.cost.flops import flops
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, Broadcast, Partial, Placement, Split
from placet.planner.choices import layout_of
from placet.program.division import Division
from placet.program.graph import Graph, Op
from placet.program.route import route, uses_of
from placet.program.rules.table import signatures
from placet.program.signature import Operator, Signature, operator_of
from testing.planned import is_legal

Guide = Mapping[str, Placement]
"""Pattern of a state's name, or "batch" -> where an axis has it; B for all others."""

_TINY, _CHEAP = 1e-6, 1e-3
"""Of a byte: for ties; and for states that a guide wants gathered from their homes."""


def guided_division(
    graph: Graph,
    mesh: Mesh,
    guides: Sequence[Guide],
    homes: Mapping[str, Layout] | None = None,
) -> Division:
    """A division that follows a guide along each axis.

    Args:
        guides: one per axis.
        homes: of states that do not live where they are used, but are gathered.
    """
    found = dict(homes or {})
    for state in graph.states:
        shape = graph.tensors[state.tensor].shape
        placed = tuple(_guided(guide, state.name) for guide in guides)
        layout = layout_of(mesh, placed, shape)
        assert layout is not None, f"{state.name} {shape} cannot be {placed}"
        found.setdefault(state.name, layout)
    have = [
        _Walk(graph, guide, size, {n: h.placements[i] for n, h in found.items()})
        for i, (guide, size) in enumerate(zip(guides, mesh.sizes, strict=True))
    ]
    picked = {}
    for op in graph.ops:
        operator = operator_of(op, graph)
        options = [walk.options(op, operator) for walk in have]
        picked[op.name] = _first_that_fits(operator, mesh, options)
        for walk, signature in zip(have, picked[op.name], strict=True):
            walk.take(op, signature)
    return route(graph, Division(mesh, picked, found), mean_bytes)


def _guided(guide: Guide, name: str) -> Placement:
    states = (pattern for pattern in guide if pattern != "batch")
    return next((guide[p] for p in states if re.search(p, name)), B)


def _of_batch(guide: Guide, num_dims: int) -> Placement:
    placement = guide.get("batch", B)
    if isinstance(placement, Split) and placement.dim >= num_dims:
        return B
    return placement


class _Walk:
    """Where one axis has each tensor so far."""

    def __init__(
        self, graph: Graph, guide: Guide, size: int, homes: Mapping[str, Placement]
    ) -> None:
        self.graph, self.size = graph, size
        self.have: dict[str, set[Placement]] = {
            name: {_of_batch(guide, len(graph.tensors[name].shape))}
            for name in graph.inputs
        }
        self.have |= {s.tensor: {homes[s.name]} for s in graph.states}
        self.gathered = {
            s.tensor for s in graph.states if homes[s.name] != _guided(guide, s.name)
        }

    def options(self, op: Op, operator: Operator) -> list[Signature]:
        """The signatures, cheapest first."""
        found = list(signatures(operator))
        if flops(operator) and len(found) > 1:
            found = [s for s in found if is_divided(s)]
        return sorted(found, key=lambda s: self._price(op, s))

    def take(self, op: Op, signature: Signature) -> None:
        for name, placement in zip(op.inputs, signature.inputs, strict=True):
            self.have[name].add(placement)
        for made, placement in zip(op.outputs, signature.outputs, strict=True):
            if made is not None:
                self.have[made] = {placement}
                if op.inputs and self.gathered.issuperset(op.inputs):
                    self.gathered.add(made)

    def _price(self, op: Op, signature: Signature) -> float:
        total = 0.0
        for name, wanted in zip(op.inputs, signature.inputs, strict=True):
            shares = [_share(have, wanted, self.size) for have in self.have[name]]
            changes = wanted not in self.have[name]
            share = min(shares) * (_CHEAP if name in self.gathered else 1.0)
            total += (share + 3 * _TINY * changes) * self._bytes(name)
        for made, placement in zip(op.outputs, signature.outputs, strict=True):
            if made is not None:
                total += _TINY * _worse(placement) * self._bytes(made)
        return total

    def _bytes(self, name: str) -> int:
        return self.graph.tensors[name].num_bytes


def _worse(placement: Placement) -> int:
    """Ties: parts are better than wholes, and those than terms."""
    if isinstance(placement, Split):
        return 0
    return 1 if isinstance(placement, Broadcast) else 2


def _share(src: Placement, dst: Placement, size: int) -> float:
    """What each rank receives of a tensor that is boxed along an axis."""
    if src == dst or isinstance(src, Broadcast) or isinstance(dst, Partial):
        return 0.0
    share = (size - 1) / size
    if isinstance(src, Partial):
        return 2 * share if isinstance(dst, Broadcast) else share
    return share if isinstance(dst, Broadcast) else share / size


def _first_that_fits(
    operator: Operator, mesh: Mesh, options: Sequence[Sequence[Signature]]
) -> tuple[Signature, ...]:
    """The cheapest signatures of all axes that go together."""
    for picked in _by_places(options):
        if is_legal(operator, mesh, picked):
            return picked
    return (signatures(operator)[0],) * len(mesh.axes)


def _by_places(
    options: Sequence[Sequence[Signature]],
) -> Iterable[tuple[Signature, ...]]:
    """All combinations; those of options that stand first come first."""
    first: tuple[int, ...] = (0,) * len(options)
    places, seen = [(0, first)], {first}
    while places:
        places.sort()
        _, at = places.pop(0)
        yield tuple(axis[i] for axis, i in zip(options, at, strict=True))
        for axis in range(len(options)):
            there = (*at[:axis], at[axis] + 1, *at[axis + 1 :])
            if there[axis] < len(options[axis]) and there not in seen:
                seen.add(there)
                places.append((sum(there), there))


def gathered_again(
    graph: Graph, division: Division, names: Iterable[str] | None = None
) -> Division:
    """The division, with boxings for the backward made anew.

    Args:
        names: of tensors; all that both phases read in another layout, if left out.
    """
    uses = uses_of(graph, division)
    boxings, again = dict(division.boxings), dict(division.again)
    wanted = set(division.boxings if names is None else names) - set(graph.inputs)
    for name in [n for n in division.boxings if n in wanted]:
        reads, steps = uses[name].reads, division.boxings[name]
        late = [r.layout for r in reads if r.phase == "backward"]
        early = [r.layout for r in reads if r.phase == "forward"]
        is_read_late = any(r.phase == "backward" and r.reader for r in reads)
        is_shared = bool(set(late) & set(early) - {uses[name].made})
        if is_shared and is_read_late and all(r.reader for r in reads):
            boxings[name] = _needed(steps, early)
            again[name] = _needed(steps, late)
    return replace(division, boxings=boxings, again=again)


def _needed(
    steps: Sequence[tuple[Layout, Layout]], wanted: Iterable[Layout]
) -> tuple[tuple[Layout, Layout], ...]:
    """The steps that lead to some layouts."""
    ends, kept = set(wanted), []
    for src, dst in reversed(steps):
        if dst in ends:
            ends.add(src)
            kept.append((src, dst))
    return tuple(reversed(kept))
