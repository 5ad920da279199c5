"""Domains: which layouts and steps there are, cheapest paths, and trees of steps."""

import random
import time
from itertools import combinations, product

import numpy as np
import pytest
import torch

from placet.boxing.path import Step, direct_step, find_path, mean_bytes
from placet.boxing.plan import plan_direct
from placet.boxing.routes import Domain, make_domain
from placet.cost.objective import bytes_objective
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S, Split

ONE = [S(0), S(1), S(2), B, P()]


def bytes_domain(axes: str, options: list[Placement] = ONE) -> Domain:
    mesh = Mesh(axes)
    price = bytes_objective(mesh).step_price
    return make_domain(
        (6, 5, 4), torch.float32, mesh, [options] * len(mesh.axes), price
    )


def drawn_domain(seed: int, axes: str = "a=3") -> Domain:
    """A domain with whole numbers as prices, drawn by seed."""
    draw = random.Random(seed)
    mesh = Mesh(axes)

    def price(_: Step) -> float:
        return float(draw.randint(1, 9))

    return make_domain((6, 5, 4), torch.float32, mesh, [ONE] * len(mesh.axes), price)


def cheapest_tree(domain: Domain, src: int, goals: tuple[int, ...]) -> float:
    """The oracle: every way to give each layout a parent, or none."""
    others = [i for i in range(len(domain.layouts)) if i != src]
    best = np.inf
    for parents in product([-1, *range(len(domain.layouts))], repeat=len(others)):
        parent = dict(zip(others, parents, strict=True))
        reached = {src}
        for _ in others:
            reached |= {i for i in others if parent[i] in reached}
        used = [i for i in others if parent[i] >= 0]
        if reached >= {*goals, *used}:
            best = min(best, sum(domain.steps[parent[i], i] for i in used))
    return float(best)


def check_tree(domain: Domain, src: int, goals: tuple[int, ...]) -> None:
    steps = domain.tree(src, goals)
    reached = {src}
    for a, b in steps:
        assert a in reached, "a step before the one that it goes on from"
        assert b not in reached, "a layout that is made twice"
        reached.add(b)
    assert reached >= set(goals)
    total = sum(domain.steps[a, b] for a, b in steps)
    assert domain.tree_price(src, goals) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_trees_are_the_cheapest_of_all(seed: int):
    domain = drawn_domain(seed)
    for src in range(len(domain.layouts)):
        others = [i for i in range(len(domain.layouts)) if i != src]
        for count in (1, 2, 3, 4):
            for goals in list(combinations(others, count))[seed::3]:
                found = domain.tree_price(src, goals)
                assert found == pytest.approx(cheapest_tree(domain, src, goals))
                check_tree(domain, src, goals)


def test_trees_to_many_layouts_are_valid_and_no_dearer_than_paths():
    domain = drawn_domain(5, "a=2, b=3")
    draw = random.Random(1)
    for _ in range(100):
        src = draw.randrange(len(domain.layouts))
        goals = tuple(draw.sample(range(len(domain.layouts)), draw.randint(2, 9)))
        check_tree(domain, src, goals)
        paths = [domain.prices[src, goal] for goal in goals]
        assert max(paths) <= domain.tree_price(src, goals) <= sum(paths)


def test_order_and_repeats_of_the_wanted_do_not_matter():
    domain = bytes_domain("a=2, b=2")
    assert domain.tree(3, (5, 3, 7, 5)) == domain.tree(3, (7, 5))
    assert domain.tree(3, (3,)) == ()
    assert domain.tree_price(3, ()) == 0


@pytest.mark.parametrize("axes", ["a=4", "a=2, b=3", "a=2, b=2, c=2"])
def test_a_steps_price_is_the_objectives(axes: str):
    domain = bytes_domain(axes)
    objective = bytes_objective(domain.layouts[0].mesh)
    count = 0
    for i, j in product(range(len(domain.layouts)), repeat=2):
        if i == j or not np.isfinite(domain.steps[i, j]):
            continue
        src, dst = domain.layouts[i], domain.layouts[j]
        step = direct_step(((6, 5, 4),), torch.float32, src, dst)
        assert step is not None
        assert domain.steps[i, j] == objective.step_price(step)
        received = sum(
            plan_direct([(6, 5, 4)], torch.float32, src, dst).received_bytes(rank)
            for rank in src.mesh.ranks
        )
        extra = domain.steps[i, j] - received / src.mesh.num_ranks
        assert 0 < extra < 0.01
        count += 1
    assert count > len(domain.layouts)


@pytest.mark.parametrize("axes", ["a=4", "a=2, b=2", "a=3, b=2"])
def test_paths_are_no_dearer_than_those_of_rules_alone(axes: str):
    domain = bytes_domain(axes)
    assert np.isfinite(domain.prices).all()
    for i, j in product(range(len(domain.layouts)), repeat=2):
        through = domain.prices[i, :, None] + domain.prices
        assert domain.prices[i, j] <= through[:, j].min() + 1e-9
        path = domain.path(i, j)
        total = sum(domain.steps[a, b] for a, b in path)
        assert domain.prices[i, j] == pytest.approx(total)


def test_paths_on_one_axis_are_those_of_boxings():
    domain = bytes_domain("a=4", [S(0), S(1), B, P()])
    for i, j in product(range(len(domain.layouts)), repeat=2):
        src, dst = domain.layouts[i], domain.layouts[j]
        steps = find_path(((6, 5, 4),), torch.float32, src, dst)
        assert domain.prices[i, j] == pytest.approx(sum(map(mean_bytes, steps)))


def test_layouts_that_do_not_exist_are_left_out():
    mesh = Mesh("a=2, b=2")
    options = [S(0), S(1), S(1), P("sum"), P("max"), B]
    domain = make_domain((3,), torch.float32, mesh, [options] * 2, mean_bytes)
    assert len(domain.layouts) == 4 * 4 - 2  # S(0), B and two reductions, not mixed
    assert domain.index(Layout(mesh, [S(0), S(0)])) >= 0
    with pytest.raises(KeyError):
        domain.index(Layout(mesh, [S(1), B]))


def test_a_halo_is_brought_and_its_adjoint_summed_away():
    mesh = Mesh("a=2, b=2")
    halo, adjoint = S(0, (1, 1)), Split(0, (1, 1), adjoint=True)
    options = [[S(0), halo, adjoint, B], [S(1), B]]
    domain = make_domain((8, 4), torch.float32, mesh, options, mean_bytes)

    def at(*placements: Placement) -> int:
        return domain.index(Layout(mesh, placements))

    # Two rows of four at the border, each to one rank, the columns shared by two.
    assert domain.prices[at(S(0), S(1)), at(halo, S(1))] == pytest.approx(8, abs=0.1)
    assert domain.prices[at(adjoint, S(1)), at(S(0), S(1))] == pytest.approx(8, abs=0.1)
    assert domain.prices[at(B, B), at(halo, B)] < 0.1
    assert not np.isfinite(domain.prices[at(S(0), B), at(adjoint, B)])


def test_a_domain_for_a_thousand_ranks_is_quick():
    mesh = Mesh("a=16, b=8, c=8")
    price = bytes_objective(mesh).step_price
    make_domain((64, 128, 256), torch.float32, mesh, [ONE] * 3, price)
    began = time.process_time()
    domain = make_domain((1024, 2048, 4096), torch.float32, mesh, [ONE] * 3, price)
    assert time.process_time() - began < 0.1
    assert len(domain.layouts) == 125


def test_paths_end_though_steps_of_no_price_lead_back():
    steps = np.array([[0.0, 0.0, np.inf], [0.0, 0.0, 0.0], [np.inf, 9.0, 0.0]])
    prices = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [9.0, 9.0, 0.0]])
    layouts = tuple(Layout(Mesh("a=2"), (p,)) for p in (B, S(0), S(1)))
    domain = Domain(layouts, steps, prices, np.ones(3))
    assert domain.path(0, 2) == [(0, 1), (1, 2)]
    assert domain.path(2, 0) == [(2, 1), (1, 0)]


def test_one_step_or_an_error():
    mesh = Mesh("a=2, b=2")
    src, dst = Layout(mesh, [S(0), P()]), Layout(mesh, [B, S(0)])
    with pytest.raises(ValueError, match="in one step"):
        plan_direct([(4, 4)], torch.float32, src, dst)
    plan = plan_direct([(4, 4)], torch.float32, src, Layout(mesh, [B, P()]))
    assert [step.rule.name for step in plan.steps] == ["split-to-broadcast"]
