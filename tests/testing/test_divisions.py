"""The comparison with one device sees what is wrong."""

from dataclasses import replace

import pytest

from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.program.interpret import interpret
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.program.route import uses_of
from testing.divisions import gathered_again, guided_division
from testing.planned import assert_parts, random_division, run_rank
from testing.ranks import run_threads
from tests.run.test_planned import at_home, case


def test_wrong_numbers_are_seen_by_name_and_rank() -> None:
    captured, states, batch = case("uneven MLP")
    mesh, tensors = Mesh("a=2"), captured.flatten(batch)
    graph = normalise(captured.graph, 2)
    division = random_division(graph, mesh, seed=0)
    refined = refine(graph, division, name="wrong")
    _, result = run_threads(2, run_rank, graph, division, refined, states, tensors)
    whole = interpret(captured.graph, states, tensors)
    assert_parts(captured.graph, division, whole, result, 1, atol=1e-9)
    first = captured.graph.states[0]
    assert first.new is not None
    spoilt = {**result.news, first.name: result.news[first.name] + 1e-6}
    wrong = replace(result, news=spoilt)
    with pytest.raises(AssertionError, match=f"{first.name} on rank 1"):
        assert_parts(captured.graph, division, whole, wrong, 1, atol=1e-9)


def test_random_divisions_differ_by_seed_alone() -> None:
    graph = normalise(case("uneven MLP")[0].graph, 2)
    mesh = Mesh("a=2")
    assert random_division(graph, mesh, 1) == random_division(graph, mesh, 1)
    assert random_division(graph, mesh, 1) != random_division(graph, mesh, 2)


def test_gathered_again_makes_no_boxing_in_vain() -> None:
    mesh = Mesh("a=2")
    graph = normalise(case("GPT")[0].graph, 2)
    once = guided_division(graph, mesh, [{"batch": S(0)}], at_home(graph, mesh))
    again = gathered_again(graph, once)
    assert again.again
    uses = uses_of(graph, again)
    for name, steps in again.again.items():
        late = {r.layout for r in uses[name].reads if r.phase == "backward"}
        ends = {dst for _, dst in steps} - {src for src, _ in steps}
        assert ends <= late, name
