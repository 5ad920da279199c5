"""A plan's step on two lanes: its nodes, priced, in the order in which they run."""

from collections.abc import Callable

import pytest

from placet.boxing.path import Step, direct_step
from placet.cost.machine import Machine
from placet.cost.objective import Seconds, seconds_objective
from placet.cost.timeline import timeline_of
from placet.placement.cluster import Cluster, Host, LinkClass
from placet.placement.mesh import Mesh
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.refine import Refined, refine
from placet.program.signature import operator_of
from tests.program.planned_programs import data_parallel, grid, states_at_home

SLOW, FAST = 1e3, 1e15
"""Bytes, or operations, a second."""

Case = tuple[Graph, Division]


def prices(mesh: Mesh, link_rate: float, work_rate: float) -> Seconds:
    link = LinkClass("network", 1e-3, link_rate)
    hosts = tuple(Host(f"h{i}", 1, 1 << 30, "network") for i in range(mesh.num_ranks))
    cluster = Cluster(hosts, (link,), "network")
    machine = Machine("x", (("matmul", "float32", work_rate),), FAST, 0.0)
    return seconds_objective(mesh, cluster, machine)


def steps_of(refined: Refined) -> list[Step]:
    """What each boxing of a program does."""
    found = []
    for boxing in refined.program.boxings():
        specs = [refined.program.tensors[name] for name in boxing.inputs]
        shapes = tuple(spec.shape for spec in specs)
        step = direct_step(shapes, specs[0].dtype, boxing.src, boxing.dst)
        assert step is not None
        found.append(step)
    return found


def work_of(graph: Graph, division: Division, found: Seconds) -> float:
    """What all operators cost."""
    return sum(
        found.node_cost(
            operator_of(op, graph), division.signatures[op.name], division.mesh
        )
        for op in graph.ops
    )


@pytest.mark.parametrize("case", [data_parallel, states_at_home, grid])
def test_lanes_hold_what_the_nodes_cost(case: Callable[[], Case]):
    graph, division = case()
    refined = refine(graph, division, name="test")
    found = prices(division.mesh, SLOW, SLOW)
    lanes = timeline_of(graph, division, refined, found)
    work = work_of(graph, division, found)
    assert lanes.compute_seconds == pytest.approx(work, rel=1e-6)
    parts = [found.links.step_parts(step) for step in steps_of(refined)]
    latency, busy = map(sum, zip(*parts, strict=True))
    assert lanes.link_seconds == pytest.approx(busy)
    assert max(work, busy) < lanes.seconds < work + busy + latency


def test_gradients_travel_beside_the_backward():
    graph, division = data_parallel()
    found = prices(division.mesh, SLOW, SLOW)
    one = refine(graph, division, name="one bucket")
    many = refine(graph, division, name="many", bucket_bytes=1)
    first = timeline_of(graph, division, one, found)
    second = timeline_of(graph, division, many, found)
    assert second.seconds < 0.95 * first.seconds
    assert second.link_seconds == pytest.approx(first.link_seconds)


@pytest.mark.parametrize("case", [data_parallel, grid])
def test_one_lane_that_is_slow_is_the_step(case: Callable[[], Case]):
    graph, division = case()
    refined = refine(graph, division, name="test")
    links = timeline_of(graph, division, refined, prices(division.mesh, SLOW, FAST))
    assert links.seconds == pytest.approx(links.link_seconds, rel=0.1)
    work = timeline_of(graph, division, refined, prices(division.mesh, FAST, 1.0))
    assert work.seconds == pytest.approx(work.compute_seconds, rel=1e-3)


def test_packing_is_computing():
    graph, division = data_parallel()
    refined = refine(graph, division, name="test")
    machine = Machine(
        "x", (("matmul", "float32", SLOW),), SLOW, 0.0, boxing_seconds=1.0
    )
    dear = Seconds(prices(division.mesh, SLOW, SLOW).links, machine)
    packing = sum(map(dear.packing_seconds, steps_of(refined)))
    assert packing > len(refined.program.boxings())
    expected = work_of(graph, division, dear) + packing
    found = timeline_of(graph, division, refined, dear)
    assert found.compute_seconds == pytest.approx(expected)
