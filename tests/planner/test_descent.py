"""Coordinate descent: its table of costs is exact, its plans fit."""

from dataclasses import replace

import numpy as np
import pytest

from placet.planner.classes import find_classes, ties_of
from placet.planner.descent import descend, solve_by_descent
from placet.planner.problem import Assignment, evaluate
from placet.planner.table import Table
from testing.problems import random_problem, repeated_problem


@pytest.mark.parametrize("seed", range(20))
def test_options_are_differences_of_the_exact_cost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = find_classes(repeated_problem(rng, random_problem(rng), 3))
    problem = replace(problem, memory_bytes=50.0)
    table = Table(problem, ties_of(problem).nodes)
    sizes = [len(problem.nodes[g[0]].costs) for g in table.groups]
    choices = [int(rng.integers(k)) for k in sizes]
    rate = float(rng.choice([0.0, 0.5, 4.0]))
    for group in rng.permutation(len(sizes))[:4]:
        cost, held = table.options(choices, int(group), rate)
        exact = []
        for k in range(sizes[group]):
            changed = [k if g == group else c for g, c in enumerate(choices)]
            value = evaluate(problem, table.assignment(changed, rate))
            exact.append((value.total, value.memory_bytes))
            assert table.value(changed, rate) == pytest.approx(exact[-1])
        np.testing.assert_allclose(cost - cost[0], [c - exact[0][0] for c, _ in exact])
        np.testing.assert_allclose(held - held[0], [m - exact[0][1] for _, m in exact])


def test_descent_ends_where_no_group_gains() -> None:
    rng = np.random.default_rng(5)
    problem = find_classes(repeated_problem(rng, random_problem(rng), 4))
    table = Table(problem, ties_of(problem).nodes)
    end = descend(table, [0] * len(table.groups))
    for group, choice in enumerate(end.choices):
        cost, _ = table.options(end.choices, group)
        assert cost[choice] == pytest.approx(cost.min())


@pytest.mark.parametrize("seed", range(10))
def test_starts_are_never_made_worse_and_memory_is_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_nodes=7)
    start = Assignment(tuple(int(rng.integers(len(n.costs))) for n in problem.nodes))
    needs = evaluate(problem, start)
    problem = replace(problem, memory_bytes=needs.memory_bytes)
    found = solve_by_descent(problem, starts=[start], restarts=2, seed=seed)
    assert found.assignment is not None
    value = evaluate(problem, found.assignment)
    assert value.total == pytest.approx(found.cost)
    assert found.cost <= needs.total
    assert value.memory_bytes <= needs.memory_bytes
    assert solve_by_descent(problem, starts=[start], restarts=2, seed=seed) == replace(
        found, seconds=pytest.approx(found.seconds, abs=10)
    )
