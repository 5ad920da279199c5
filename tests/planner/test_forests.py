"""Moves along forests: never worse, and out of where single moves are stuck."""

import time
from dataclasses import replace

import numpy as np
import pytest

from placet.planner.classes import untied
from placet.planner.descent import descend
from placet.planner.exhaustive import solve_exhaustively
from placet.planner.forests import improve
from placet.planner.problem import Node, Problem, Tensor, evaluate
from placet.planner.table import Table
from testing.problems import OPERATOR, random_domain, random_problem


def _ends(seed: int) -> tuple[float, float, float]:
    """The costs of a descent, of moves after it, and of the best plan."""
    problem = random_problem(np.random.default_rng(seed), num_nodes=7)
    ties = untied(problem)
    table = Table(problem, ties.nodes)
    first = descend(table, [0] * len(problem.nodes))
    found = improve(table, first, patience=5, deadline=time.monotonic() + 10)
    value = evaluate(problem, table.assignment(found.choices)).total
    assert value == pytest.approx(found.cost)
    return first.cost, found.cost, solve_exhaustively(problem).cost


def test_moves_never_lose() -> None:
    for seed in range(20):
        before, after, best = _ends(seed)
        assert best - 1e-9 <= after <= before


def test_a_row_of_nodes_moves_together() -> None:
    """Layout 1 is cheaper for all, and dearer for anyone who goes there alone."""
    domain = random_domain(np.random.default_rng(0), 2, free=0.0)
    prices = np.array([[0.0, 10.0], [10.0, 0.0]])
    domain = replace(domain, steps=prices, prices=prices)
    both, none = np.array([[0], [1]], np.int32), np.zeros((2, 0), np.int32)
    nodes, tensors = [], []
    for n in range(6):
        inputs = (n - 1,) if n else ()
        ins = both if n else none
        costs = np.array([1.0, 0.0])
        signatures = OPERATOR * 2
        nodes.append(
            Node(f"op{n}", inputs, (n,), signatures, ins, both, costs, np.zeros(2))
        )
        readers = ((n + 1, 0),) if n < 5 else ()
        tensors.append(Tensor(f"t{n}", domain, (n, 0), readers))
    problem = Problem(tuple(nodes), tuple(tensors))
    table = Table(problem, untied(problem).nodes)
    stuck = descend(table, [0] * 6)
    assert stuck.cost == 6.0
    deadline = time.monotonic() + 10
    assert improve(table, stuck, patience=3, deadline=deadline).cost == 0.0
