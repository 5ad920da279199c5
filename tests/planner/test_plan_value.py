"""A plan as a value: text, file, difference, alternatives, edits."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placet.errors import PlanError
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.planner.plan import Plan
from placet.planner.plan_edit import cost_of, objective_of
from placet.planner.plan_facts import moves_of
from placet.planner.planning import graph_for, plan
from placet.program.graph import Graph


class Layer(nn.Module):
    """Up, down, and around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.relu(self.up(x)))
        return out


class Stack(nn.Module):
    """Equal layers."""

    def __init__(self, depth: int, width: int = 8) -> None:
        super().__init__()
        self.h = nn.ModuleList(Layer(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.h:
            x = layer(x)
        return x


def square(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss."""
    out: Tensor = model(batch).square().mean()
    return out


def made(depth: int = 3, mesh: str = "a=2, b=2") -> tuple[Plan, Graph]:
    """A plan of a stack, and its graph."""
    model, batch = Stack(depth), torch.zeros(16, 8)
    found = plan(
        model,
        batch,
        square,
        mesh=Mesh(mesh),
        objective="bytes",
        time_limit_seconds=5.0,
    )
    return found, graph_for(model, batch, square, num_ranks=Mesh(mesh).num_ranks)


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, Graph]:
    """Made once."""
    return made()


def test_a_plan_comes_back_from_its_file(planned, tmp_path) -> None:
    ours, _ = planned
    ours.save(tmp_path / "plan.json")
    theirs = Plan.load(tmp_path / "plan.json")
    assert theirs.division == ours.division
    assert theirs.to_json() == ours.to_json()
    assert ours.diff(theirs) == ""
    assert (theirs.cost, theirs.bound, theirs.batch) == (
        ours.cost,
        ours.bound,
        ours.batch,
    )
    assert theirs.cluster == ours.cluster


def test_equal_blocks_are_written_once() -> None:
    short, _ = made(4, "a=2")
    long, _ = made(24, "a=2")
    assert len(long.to_json()) < 1.3 * len(short.to_json())


def test_the_text_folds_blocks(planned) -> None:
    text = str(planned[0])
    assert "h.{0-2}.up.weight" in text
    assert "Mesh('a=2, b=2')" in text


def test_edits_are_priced_as_the_search_prices(planned) -> None:
    ours, graph = planned
    found = cost_of(graph, ours.division, objective_of(ours)).total
    assert found == pytest.approx(ours.cost, rel=1e-9)


def test_no_edit_of_an_optimal_plan_is_cheaper(planned) -> None:
    ours, graph = planned
    assert ours.is_complete
    for home in ([B, B], [S(0), B], [S(1), S(0)]):
        edited = ours.with_home(graph, "h.1.up.weight", home)
        assert edited.cost >= ours.cost * (1 - 1e-9)
        assert edited.division.homes["h.1.up.weight"].placements == tuple(home)
    changed = ours.with_home(graph, "h.1.up.weight", [S(1), S(0)])
    told = ours.diff(changed).splitlines()
    assert any(line.startswith("cost: ") and "B -> " in line for line in told)
    home = next(line for line in told if line.startswith("homes: h.1.up.weight: "))
    assert home.endswith(" -> S(1) @a, S(0) @b")


def test_boxings_by_way_of_other_placements_are_priced(planned) -> None:
    """Slices become terms for nothing, so a plan may go S -> P -> B."""
    ours, graph = planned
    mesh = ours.mesh
    split, terms, whole = (Layout(mesh, [p, B]) for p in (S(0), P(), B))
    name = "h.0.up.weight"
    tensor = next(s.tensor for s in graph.states if s.name == name)
    stored = ours.with_home(graph, name, split)
    boxings = {**stored.division.boxings, tensor: ((split, terms), (terms, whole))}
    by_terms = replace(stored.division, boxings=boxings)
    objective = objective_of(ours)
    direct = {**boxings, tensor: ((split, whole),)}
    at_once = replace(stored.division, boxings=direct)
    more = cost_of(graph, by_terms, objective).total
    more -= cost_of(graph, at_once, objective).total
    size = graph.tensors[tensor].num_bytes
    assert more == pytest.approx(2 * size / 2 - size / 2, abs=1)  # all-reduce, gather
    moves = moves_of(graph, by_terms)
    assert (name, "P(sum) -> B @a", 1, pytest.approx(size, abs=1)) in moves


def test_explain_lists_alternatives(planned) -> None:
    ours, graph = planned
    text = ours.explain(graph, "h.1.up.weight")
    assert text.count("\n") == 9
    assert "<- the plan" in text
    heavy = next(op for op in graph.ops if op.module == "h.1.up").name
    assert "<- the plan" in ours.explain(graph, heavy)
    with pytest.raises(ValueError, match="no parameter, module, operator"):
        ours.explain(graph, "nothing")


def test_bad_edits_are_refused(planned) -> None:
    ours, graph = planned
    with pytest.raises(ValueError, match="no operator"):
        ours.with_signature(graph, "nothing", [])
    with pytest.raises(ValueError, match="cannot be divided"):
        ours.with_signature(graph, graph.ops[0].name, [])
    with pytest.raises(ValueError, match="no parameter or buffer"):
        ours.with_home(graph, "nothing", [B, B])


@pytest.mark.parametrize("text", ["", "{}", '{"format": "placet-plan-0"}', "[1]"])
def test_what_is_no_plan_is_refused(text: str, tmp_path) -> None:
    with pytest.raises(PlanError, match="no plan that can be read"):
        Plan.from_json(text)
    with pytest.raises(PlanError, match="No such file"):
        Plan.load(tmp_path / "none.json")
