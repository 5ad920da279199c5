"""The solver against all plans, tried one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest

from placet.planner.exhaustive import solve_exhaustively
from placet.planner.problem import Problem, evaluate
from placet.planner.search import solve
from testing.problems import random_problem


def _same(problem: Problem) -> None:
    best = solve_exhaustively(problem)
    found = solve(problem)
    assert found.cost == pytest.approx(best.cost, rel=1e-7, abs=1e-7)
    assert found.bound <= best.cost + 1e-6 * max(best.cost, 1.0)
    assert found.is_complete
    if best.assignment is None:
        assert found.assignment is None
        assert found.least_memory_bytes == pytest.approx(best.least_memory_bytes)
        return
    assert found.assignment is not None
    value = evaluate(problem, found.assignment)
    assert value.total == pytest.approx(found.cost)
    assert problem.memory_bytes is None or value.memory_bytes <= problem.memory_bytes


def _limited(rng: np.random.Generator, problem: Problem) -> Problem:
    """With a limit somewhere around what the cheapest plan needs."""
    best = solve_exhaustively(problem).assignment
    assert best is not None
    needs = evaluate(problem, best).memory_bytes
    return replace(problem, memory_bytes=float(math.floor(needs * rng.uniform(0.3, 1))))


def _check(seed: int, *, limited: bool) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(3, 9))
    problem = random_problem(rng, num_nodes=size, max_layouts=25)
    if limited:
        problem = _limited(rng, problem)
    _same(problem)


@pytest.mark.parametrize("seed", range(40))
def test_solver_finds_the_cheapest_of_all_plans(seed: int) -> None:
    _check(seed, limited=False)


@pytest.mark.parametrize("seed", range(40))
def test_solver_finds_the_cheapest_within_memory(seed: int) -> None:
    _check(seed, limited=True)
