"""Plans by what travels beside computing: gradients may, activations may not."""

import math
import time

import pytest
import torch

from placet.cost.machine import Machine
from placet.cost.objective import seconds_objective
from placet.placement.cluster import Cluster, Host, LinkClass
from placet.placement.mesh import Mesh
from placet.placement.placement import B
from placet.planner.beside import best_beside, discounted
from placet.planner.build import build_problem
from placet.planner.decide import decide
from placet.planner.problem import Problem, Solution, evaluate
from placet.planner.search import solve
from placet.program.capture import capture
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from testing.models.zoo import vectors

MESH = Mesh("a=4")
LINK = LinkClass("network", 1e-4, 1e9)
CLUSTER = Cluster(
    tuple(Host(f"host{i}", 1, 1 << 33, LINK.name) for i in range(4)), (LINK,), LINK.name
)
PRICES = seconds_objective(
    MESH, CLUSTER, Machine("slow", (("matmul", "float32", 1e9),), 1e10, 1e-6)
)


@pytest.fixture(scope="module")
def graph() -> Graph:
    example = vectors("perceptron", (256, 256, 256, 256), batch=256)
    captured = capture(example.model_fn(), example.batch_fn(), example.loss)
    return normalise(captured.graph, 4)


@pytest.fixture(scope="module")
def problem(graph: Graph) -> Problem:
    return build_problem(graph, MESH, PRICES)


@pytest.fixture(scope="module")
def least(problem: Problem) -> Solution:
    return solve(problem, time_limit_seconds=20)


def beside(
    graph: Graph, problem: Problem, solution: Solution, seconds: float
) -> Solution:
    ends = time.monotonic() + seconds
    return best_beside(graph, MESH, problem, solution, PRICES, ends=ends)


def test_gradients_that_are_hidden_make_a_plan_of_copies(
    graph: Graph, problem: Problem, least: Solution
) -> None:
    assert least.assignment is not None
    found = beside(graph, problem, least, 20)
    assert found.assignment is not None
    homes = decide(problem, MESH, found.assignment).homes
    assert all(home.placements == (B,) for home in homes.values())
    before = decide(problem, MESH, least.assignment).homes
    assert any(home.placements != (B,) for home in before.values())
    assert any("overlaps" in note for note in found.notes)


def test_costs_and_bounds_stay_those_without_overlap(
    graph: Graph, problem: Problem, least: Solution
) -> None:
    found = beside(graph, problem, least, 20)
    assert found.assignment is not None
    assert found.cost == evaluate(problem, found.assignment).total > least.cost
    assert found.bound == least.bound


def test_without_time_the_plan_stays(
    graph: Graph, problem: Problem, least: Solution
) -> None:
    assert beside(graph, problem, least, 0.1) is least


def test_a_share_of_the_price_is_for_states_alone(problem: Problem) -> None:
    cheap = discounted(problem, 0.25)
    weights = {t for node in problem.nodes if node.is_state for t in node.inputs}
    weights |= {
        t for n in problem.nodes if n.is_state for t in n.outputs if t is not None
    }
    for index, (new, old) in enumerate(
        zip(cheap.tensors, problem.tensors, strict=True)
    ):
        share = 0.25 if index in weights else 1.0
        finite = torch.from_numpy(old.domain.prices).isfinite().numpy()
        assert new.domain.layouts == old.domain.layouts
        assert math.isclose(
            new.domain.prices[finite].sum(), share * old.domain.prices[finite].sum()
        )
