"""Deep models: layers tied, bounds of free ones, within time and memory."""

import resource
import time

import pytest

from placet.cost.objective import bytes_objective
from placet.placement.mesh import Mesh
from placet.planner.classes import find_classes, ties_of, untied
from placet.planner.problem import evaluate
from placet.planner.relax import relax
from placet.planner.search import solve
from testing.deep_problem import deep_problem


def test_bound_of_tied_layers_is_that_of_free_ones() -> None:
    mesh = Mesh("a=4, b=2")
    price = bytes_objective(mesh).step_price
    problem = find_classes(deep_problem(mesh, price, num_blocks=4, num_layers=3))
    tied = relax(problem, ties_of(problem)).relaxed(30, "highs-ds").proof
    free = relax(problem, untied(problem)).relaxed(30, "highs-ds").proof
    assert tied.bound <= free.bound * (1 + 1e-8)
    assert tied.bound == pytest.approx(free.bound, rel=1e-3)
    found = solve(problem)
    assert free.bound * (1 - 1e-8) <= found.cost <= free.bound * 1.005


def test_without_time_there_is_a_plan_and_it_says_so() -> None:
    mesh = Mesh("a=2, b=2, c=2")
    price = bytes_objective(mesh).step_price
    problem = deep_problem(mesh, price, num_blocks=2, num_layers=2)
    found = solve(problem, time_limit_seconds=0.0)
    assert not found.is_complete
    assert found.assignment is not None
    assert evaluate(problem, found.assignment).total == pytest.approx(found.cost)
    best = solve(problem)
    assert found.bound <= best.cost <= found.cost * (1 + 1e-9)


@pytest.mark.prove
def test_96_blocks_on_three_axes() -> None:
    mesh = Mesh("a=4, b=4, c=4")
    price = bytes_objective(mesh).step_price
    problem = find_classes(deep_problem(mesh, price, num_blocks=96))
    assert len(problem.nodes) == 5762
    started = time.process_time()
    found = solve(problem, time_limit_seconds=300)
    assert time.process_time() - started < 40
    assert found.is_complete
    assert found.gap < 1e-3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak < 4 << 20
