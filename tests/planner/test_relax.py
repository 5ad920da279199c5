"""Bounds hold, with ties and without, whatever the solver answers."""

from dataclasses import replace

import numpy as np
import pytest

from placet.planner.classes import Ties, find_classes, ties_of, untied
from placet.planner.duals import certify, worthwhile
from placet.planner.exhaustive import solve_exhaustively
from placet.planner.flows import Ends, add_tree
from placet.planner.linear import Builder
from placet.planner.problem import Floats, Problem
from placet.planner.reduce import needed_choices
from placet.planner.relax import relax
from placet.planner.routing import needed_steps, path_steps
from testing.problems import random_domain, random_problem, repeated_problem


def _bound(problem: Problem, ties: Ties, *, reduced: bool = False) -> float:
    choices = needed_choices(problem, ties) if reduced else None
    found = relax(problem, ties, choices).relaxed(30, "highs-ds")
    if found.values is not None:
        assert found.proof.bound == pytest.approx(found.cost, abs=1e-6)
    return found.proof.bound


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("limited", [False, True])
def test_ties_never_raise_the_bound(seed: int, limited: bool) -> None:
    rng = np.random.default_rng(seed)
    block = random_problem(rng, num_nodes=int(rng.integers(3, 7)))
    problem = find_classes(repeated_problem(rng, block, int(rng.integers(2, 6))))
    if limited:
        problem = replace(problem, memory_bytes=float(rng.integers(10, 60)))
    tied, free = _bound(problem, ties_of(problem)), _bound(problem, untied(problem))
    assert tied <= free * (1 + 1e-9) + 1e-7


@pytest.mark.parametrize("seed", range(30))
def test_leaving_out_choices_changes_no_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_nodes=7, max_choices=8)
    ties = untied(problem)
    kept = sum(map(len, needed_choices(problem, ties)))
    assert _bound(problem, ties, reduced=True) == pytest.approx(_bound(problem, ties))
    assert kept <= sum(len(n.costs) for n in problem.nodes)


def test_some_choices_are_left_out() -> None:
    rng = np.random.default_rng(0)
    problems = [random_problem(rng, num_nodes=7, max_choices=8) for _ in range(10)]
    kept = sum(len(k) for p in problems for k in needed_choices(p, untied(p)))
    assert kept < sum(len(n.costs) for p in problems for n in p.nodes)


@pytest.mark.parametrize("num_reads", [1, 2, 3, 4, 5])
def test_a_tree_of_fixed_ends_is_priced_as_the_domain_does(num_reads: int) -> None:
    """Exactly, where consumers are told apart; else from below."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        domain = random_domain(rng, 9)
        made, *read = (int(x) for x in rng.choice(9, num_reads + 1, replace=False))
        builder = Builder()
        one = builder.columns([0.0])
        builder.put(builder.rows(1, 1, 1), one, 1.0)
        ends = [Ends(np.array([x]), one, np.ones(1)) for x in (made, *read)]
        add_tree(builder, domain, ends[0], ends[1:], 1.0)
        found = builder.build().relaxed(30).cost
        price = domain.tree_price(made, tuple(read))
        assert found <= price + 1e-7
        if num_reads <= 4:
            assert found == pytest.approx(price)


@pytest.mark.parametrize("seed", range(10))
def test_steps_that_are_kept_price_all_paths_alike(seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = random_domain(rng, 12)
    some = rng.choice(12, 4, replace=False)
    for steps, sources in ((needed_steps(domain), range(12)), (None, some)):
        src, dst = steps or path_steps(domain, some, some)
        prices = np.full((12, 12), np.inf)
        np.fill_diagonal(prices, 0.0)
        prices[src, dst] = domain.steps[src, dst]
        for k in range(12):
            np.minimum(prices, prices[:, k, None] + prices[None, k], out=prices)
        where = np.ix_(list(sources), list(sources))
        np.testing.assert_allclose(prices[where], domain.prices[where])
    assert len(needed_steps(domain)[0]) < np.isfinite(domain.steps).sum() - 12


@pytest.mark.parametrize("seed", range(20))
def test_a_model_that_may_branch_at_ends_only_proves_no_more(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), num_nodes=6, max_layouts=12)
    ties = untied(problem)
    near = relax(problem, ties, most=np.inf).relaxed(30, "highs-ds")
    assert near.proof.bound <= _bound(problem, ties) + 1e-7 <= near.cost + 2e-7


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("limited", [False, True])
def test_choices_of_better_plans_are_worthwhile(seed: int, limited: bool) -> None:
    rng = np.random.default_rng(seed)
    block = random_problem(rng, num_nodes=3)
    problem = find_classes(repeated_problem(rng, block, 3))
    if limited:
        problem = replace(problem, memory_bytes=float(rng.integers(10, 60)))
    best = solve_exhaustively(problem)
    if best.assignment is None:
        return
    ties = ties_of(problem)
    proof = relax(problem, ties, most=best.cost).relaxed(30, "highs-ds").proof
    assert proof.bound <= best.cost + 1e-7
    used = worthwhile(proof, [len(g) for g in ties.nodes], best.cost)
    for node, choice in enumerate(best.assignment.choices):
        assert used[ties.node_class[node]][choice]


@pytest.mark.parametrize("seed", range(20))
def test_any_prices_of_rows_give_a_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = replace(random_problem(rng), memory_bytes=30.0)
    found = relax(problem, untied(problem))
    best = found.relaxed(30)

    def bound(prices: Floats | None) -> float:
        proof = certify(found.model, found.trees, found.columns, found.convex, prices)
        return proof.bound

    assert bound(rng.normal(0, 5, len(found.model.lower))) <= best.proof.bound + 1e-7
    assert bound(None) <= best.proof.bound + 1e-7
    if best.status == "optimal":
        assert best.proof.bound == pytest.approx(best.cost, abs=1e-6)
