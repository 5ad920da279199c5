"""The solver against all plans, tried one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest

from placet.planner.classes import find_classes, ties_of
from placet.planner.descent import solve_by_descent
from placet.planner.exhaustive import solve_exhaustively
from placet.planner.problem import Problem, Solution, evaluate
from placet.planner.search import solve
from testing.problems import random_problem, repeated_problem


def _check(problem: Problem) -> Solution:
    """Solves both ways; returns the best of all."""
    best = solve_exhaustively(problem)
    found = solve(problem)
    assert found.cost == pytest.approx(best.cost, rel=1e-7, abs=1e-7)
    assert found.bound <= best.cost + 1e-7
    assert found.is_complete
    if best.assignment is None:
        assert found.assignment is None
        assert found.least_memory_bytes == pytest.approx(best.least_memory_bytes)
        return best
    assert found.assignment is not None
    assert found.gap <= 1e-7
    value = evaluate(problem, found.assignment)
    assert value.total == found.cost
    assert problem.memory_bytes is None or value.memory_bytes <= problem.memory_bytes
    assert solve_by_descent(problem, restarts=1).cost >= best.cost - 1e-9
    return best


def _check_with_and_without_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_nodes=int(rng.integers(3, 9)), max_layouts=25)
    best = _check(problem)
    assert best.assignment is not None
    needed = evaluate(problem, best.assignment).memory_bytes
    limit = math.floor(needed * rng.uniform(0.5, 1))
    _check(replace(problem, memory_bytes=float(limit)))


@pytest.mark.parametrize("seed", range(60))
def test_solver_finds_the_cheapest_of_all_plans(seed: int) -> None:
    _check_with_and_without_memory(seed)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(60, 400))
def test_solver_finds_the_cheapest_of_many_more(seed: int) -> None:
    _check_with_and_without_memory(seed)


@pytest.mark.parametrize("seed", range(8))
def test_tied_layers_end_at_the_cheapest_plan_of_free_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = random_problem(rng, num_nodes=3)
    problem = find_classes(repeated_problem(rng, block, 3))
    assert not ties_of(problem).is_trivial
    _check(problem)


def test_cutoff_ends_the_search() -> None:
    problem = random_problem(np.random.default_rng(0))
    best = solve(problem)
    assert best.cost > 0
    found = solve(problem, cutoff=best.cost / 2)
    assert found.assignment is None
    assert found.is_complete
    assert best.cost / 2 <= found.bound <= best.cost
    assert solve(problem, cutoff=best.cost + 1).cost == best.cost


def test_too_little_memory_says_how_much_is_needed() -> None:
    problem = replace(random_problem(np.random.default_rng(2)), memory_bytes=0.0)
    found = solve(problem)
    assert found.assignment is None
    assert found.least_memory_bytes is not None
    enough = solve(replace(problem, memory_bytes=found.least_memory_bytes))
    assert enough.assignment is not None
    value = evaluate(problem, enough.assignment)
    assert value.memory_bytes == found.least_memory_bytes
