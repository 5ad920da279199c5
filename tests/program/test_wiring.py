"""The program's tensors: one for each layout that a tensor of the graph is in."""

from placet.boxing.path import mean_bytes
from placet.placement.layout import Layout, replicated
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.program.route import route
from placet.program.wiring import Step, wire_up
from testing.divisions import gathered_again, guided_division
from tests.program.planned_programs import DATA, at_home, normed_graph, states_at_home

MESH = Mesh("data=2")


def _step(src: Layout, dst: Layout) -> Step:
    return Step("x", "x", "x@", src, dst)


def test_what_moves() -> None:
    cut, whole, terms = (Layout(MESH, [p]) for p in (S(0), B, P()))
    assert _step(cut, whole).moves
    assert _step(terms, cut).moves
    assert not _step(whole, cut).moves
    assert not _step(whole, terms).moves
    assert not _step(cut, terms).moves


def test_reads_are_in_the_layout_of_the_signature() -> None:
    graph, division = states_at_home()
    wiring = wire_up(graph, division)
    for op in graph.ops:
        for i, name in enumerate(op.inputs):
            tensor, layout = wiring.layouts[wiring.reads[op.name, i]]
            wanted = tuple(s.inputs[i] for s in division.signatures[op.name])
            assert (tensor, layout.placements) == (name, wanted)


def test_news_end_at_home_and_results_whole() -> None:
    graph, division = states_at_home()
    wiring = wire_up(graph, division)
    for name, made in wiring.news.items():
        assert wiring.layouts[made][1] == division.homes[name]
    assert set(wiring.results) == {graph.loss}
    for made in wiring.results.values():
        assert wiring.layouts[made][1] == replicated(division.mesh)


def test_backward_reads_what_was_boxed_again() -> None:
    graph = normed_graph(2)
    homes = at_home(graph, MESH)
    division = gathered_again(graph, guided_division(graph, MESH, [DATA], homes))
    wiring = wire_up(graph, division)
    late = 0
    for op in graph.ops:
        for i, name in enumerate(op.inputs):
            again = wiring.reads[op.name, i].endswith("~again")
            late += again
            assert not again or (op.phase == "backward" and name in division.again)
    assert late


def test_route_is_what_its_reads_want_and_no_more() -> None:
    graph, division = states_at_home()
    assert route(graph, division, mean_bytes).boxings == division.boxings
    wiring = wire_up(graph, division)
    read = {*wiring.reads.values(), *wiring.news.values(), *wiring.results.values()}
    read |= {step.input for step in wiring.steps.values()}
    assert set(wiring.steps) <= read
