"""A plan's step on two lanes, computing and links: its program's nodes, priced.

    segment    computing, the sum of its operators                     -> Compute
    boxing     its copies are computing, its move is the links'        -> Submit
    wait       where the program needs a boxing's result               -> Wait

step seconds = when both lanes are done  -> placet.cost.overlap.predict
"""

from collections.abc import Iterator

from placet.boxing.path import Step, direct_step
from placet.cost.objective import Seconds
from placet.cost.overlap import Compute as Computes
from placet.cost.overlap import Event, Submit, Timeline, Wait, predict
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.lifetimes import awaited
from placet.program.node import Boxing, Compute
from placet.program.program import Program
from placet.program.refine import Refined
from placet.program.signature import operator_of


def timeline_of(
    graph: Graph, division: Division, refined: Refined, prices: Seconds
) -> Timeline:
    """A step's time, with boxings beside computing.

    Args:
        graph, division, refined: what a rank runs.
        prices: of links and machine.
    """
    return predict(events_of(graph, division, refined, prices))


def events_of(
    graph: Graph, division: Division, refined: Refined, prices: Seconds
) -> Iterator[Event]:
    """What a rank does in a step, in its order."""
    ops = {op.name: op for op in graph.ops}
    program = refined.program
    for node, waited in zip(program.nodes, awaited(program.nodes), strict=True):
        for name in waited:
            yield Wait(name)
        if isinstance(node, Compute):
            yield Computes(
                sum(
                    prices.node_cost(
                        operator_of(ops[name], graph),
                        division.signatures[name],
                        division.mesh,
                    )
                    for name in refined.bodies[node.name]
                )
            )
        elif isinstance(node, Boxing):
            step = _step(program, node)
            yield Computes(prices.packing_seconds(step))
            latency, busy = prices.links.step_parts(step)
            yield Submit(node.name, busy, node.priority, latency)


def _step(program: Program, node: Boxing) -> Step:
    specs = [program.tensors[name] for name in node.inputs]
    shapes = tuple(spec.shape for spec in specs)
    step = direct_step(shapes, specs[0].dtype, node.src, node.dst)
    assert step is not None, f"{node.name} is no single step"
    return step
