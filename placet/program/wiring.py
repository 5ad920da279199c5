"""Which tensor of the program each op reads: a tensor in one of its layouts.

x                 in the layout that it is made in (a state: its home)
x@S(0),B          in another one
x@S(0),B~again    boxed once more for the backward
"""

from collections.abc import Mapping
from dataclasses import dataclass

from placet.placement.layout import Layout, replicated
from placet.placement.placement import Broadcast, Partial
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.route import uses_of
from placet.program.signature import layouts_of


@dataclass(frozen=True)
class Step:
    """One boxing of one tensor, between two of the program's tensors.

    Args:
        again: for the backward, which begins it.
    """

    tensor: str
    input: str
    output: str
    src: Layout
    dst: Layout
    again: bool = False

    @property
    def moves(self) -> bool:
        """Whether bytes move: not where replicas are cut, or slices become terms."""
        pairs = zip(self.src.placements, self.dst.placements, strict=True)
        return any(
            p != q and not isinstance(p, Broadcast) and not isinstance(q, Partial)
            for p, q in pairs
        )


@dataclass(frozen=True)
class Wiring:
    """The program's tensors.

    Args:
        layouts: the program's tensor -> (the graph's tensor, its layout).
        steps: the program's tensor -> the boxing that makes it.
        reads: (op, input slot) -> what it reads.
        news: parameter or buffer -> its gradient or new value, at home.
        results: loss, count and extras of the graph -> them, whole.
    """

    layouts: Mapping[str, tuple[str, Layout]]
    steps: Mapping[str, Step]
    reads: Mapping[tuple[str, int], str]
    news: Mapping[str, str]
    results: Mapping[str, str]


def wire_up(graph: Graph, division: Division) -> Wiring:
    """The program's tensors under a division."""
    uses = uses_of(graph, division)
    layouts = {name: (name, use.made) for name, use in uses.items()}
    steps = {}
    for found, again in ((division.boxings, False), (division.again, True)):
        for name, changes in found.items():
            for src, dst in changes:
                input_name = _name(name, src, uses[name].made, again=again)
                output = _name(name, dst, uses[name].made, again=again)
                steps[output] = Step(name, input_name, output, src, dst, again)
                layouts[output] = name, dst
    reads = {}
    for op in graph.ops:
        inputs, _ = layouts_of(division.mesh, division.signatures[op.name])
        for i, (name, layout) in enumerate(zip(op.inputs, inputs, strict=True)):
            again = op.phase == "backward" and name in division.again
            reads[op.name, i] = _name(name, layout, uses[name].made, again=again)
    homes = {s.name: division.homes[s.name] for s in graph.states}

    def late(name: str, layout: Layout) -> str:
        again = _name(name, layout, uses[name].made, again=True)
        return again if again in steps else _name(name, layout, uses[name].made)

    news = {
        s.name: late(s.new, homes[s.name]) for s in graph.states if s.new is not None
    }
    whole = replicated(division.mesh)
    ends = [n for n in (graph.loss, graph.count, *graph.extras) if n is not None]
    results = {name: late(name, whole) for name in ends}
    return Wiring(layouts, steps, reads, news, results)


def _name(name: str, layout: Layout, made: Layout, *, again: bool = False) -> str:
    """What the program calls a tensor in a layout."""
    if layout == made:
        return name
    placements = ",".join(map(repr, layout.placements))
    return f"{name}@{placements}{'~again' if again else ''}"
