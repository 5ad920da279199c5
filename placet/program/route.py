"""Which boxings a division needs, when nobody has chosen them yet.

made    the layout that a tensor's operator gives it, its home, or B for the batch
read    the layouts that operators, a state's home and the results want
boxings the cheapest tree from made to read                  -> Domain.tree
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from placet.boxing.path import Step, direct_step
from placet.boxing.routes import Domain, StepPrice, make_domain
from placet.placement.layout import Layout, replicated
from placet.placement.placement import B, Placement, Split
from placet.program.division import Division
from placet.program.graph import Graph, Phase, TensorMeta
from placet.program.signature import layouts_of


@dataclass(frozen=True)
class Read:
    """Somebody who reads a tensor.

    Args:
        layout: in which it is wanted.
        reader: the op's name; "" for a state's home or the results.
        phase: when.
    """

    layout: Layout
    reader: str
    phase: Phase


@dataclass(frozen=True)
class Use:
    """How a tensor is made and read under a division."""

    made: Layout
    reads: tuple[Read, ...]


def uses_of(graph: Graph, division: Division) -> dict[str, Use]:
    """How every tensor of a graph is made and read."""
    mesh = division.mesh
    whole = replicated(mesh)
    made: dict[str, Layout] = dict.fromkeys(graph.inputs, whole)
    reads: dict[str, list[Read]] = {name: [] for name in graph.tensors}
    for state in graph.states:
        made[state.tensor] = division.homes[state.name]
    for op in graph.ops:
        inputs, outputs = layouts_of(mesh, division.signatures[op.name])
        for name, layout in zip(op.inputs, inputs, strict=True):
            reads[name].append(Read(layout, op.name, op.phase))
        for output, layout in zip(op.outputs, outputs, strict=True):
            if output is not None:
                made[output] = layout
    for state in graph.states:
        if state.new is not None:
            reads[state.new].append(Read(division.homes[state.name], "", "backward"))
    news = {state.new for state in graph.states}
    for name in graph.results:
        if name not in news:
            reads[name].append(Read(whole, "", "backward"))
    return {name: Use(made[name], tuple(reads[name])) for name in graph.tensors}


def route(graph: Graph, division: Division, price: StepPrice) -> Division:
    """The division with the cheapest boxings filled in."""
    uses = uses_of(graph, division)
    domains = domains_of(graph, uses, price)
    boxings = {}
    for name, use in uses.items():
        domain = domains[graph.tensors[name]]
        wanted = dict.fromkeys(domain.index(read.layout) for read in use.reads)
        steps = domain.tree(domain.index(use.made), tuple(wanted))
        if steps:
            layouts = domain.layouts
            boxings[name] = tuple((layouts[a], layouts[b]) for a, b in steps)
    return replace(division, boxings=boxings, again={})


def steps_of(graph: Graph, division: Division) -> Iterator[tuple[str, Step]]:
    """Every boxing step of a division, and the tensor that it is of."""
    for found in (division.boxings, division.again):
        for name, pairs in found.items():
            meta = graph.tensors[name]
            for src, dst in pairs:
                step = direct_step((meta.shape,), meta.dtype, src, dst)
                assert step is not None, f"{name}: {src!r} -> {dst!r} is no single step"
                yield name, step


def domains_of(
    graph: Graph, uses: Mapping[str, Use], price: StepPrice
) -> dict[TensorMeta, Domain]:
    """A domain for each kind of tensor, of the placements that occur."""
    found: dict[TensorMeta, dict[Placement, None]] = {}
    for name, use in uses.items():
        meta = graph.tensors[name]
        dims = [Split(d) for d, size in enumerate(meta.shape) if size > 1]
        known = found.setdefault(meta, dict.fromkeys([B, *dims]))
        for layout in (use.made, *(read.layout for read in use.reads)):
            known.update(dict.fromkeys(layout.placements))
    mesh = next(iter(uses.values())).made.mesh
    return {
        meta: make_domain(
            meta.shape, meta.dtype, mesh, [tuple(known)] * len(mesh.axes), price
        )
        for meta, known in found.items()
    }
