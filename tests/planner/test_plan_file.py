"""A plan's file, edited by hand: what is wrong with it is said, and where."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placet.errors import PlanError
from placet.placement.mesh import Mesh
from placet.placement.placement import B, S
from placet.planner.plan import Plan
from placet.planner.plan_check import check_division
from placet.planner.planning import graph_for, plan
from placet.program.graph import Graph

File = dict[str, Any]


def square(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss."""
    out: Tensor = model(batch).square().mean()
    return out


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, Graph]:
    """A plan on two axes, and its graph."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    batch = torch.zeros(16, 8)
    found = plan(
        model,
        batch,
        square,
        mesh=Mesh("a=2, b=2"),
        objective="bytes",
        time_limit_seconds=5.0,
    )
    return found, graph_for(model, batch, square, num_ranks=4)


def edited(ours: Plan, edit: Callable[[File], object]) -> str:
    """The plan's file after an edit."""
    found: File = json.loads(ours.to_json())
    edit(found)
    return json.dumps(found)


def move_home(file: File, name: str, number: str) -> None:
    """Put a state under another layout's number."""
    for names in file["homes"].values():
        if name in names:
            names.remove(name)
    file["homes"].setdefault(number, []).append(name)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda f: f.pop("homes"), "it has no 'homes'"),
        (lambda f: f.update(cost=True), "its cost is True, not a number"),
        (lambda f: f.update(cost=float("nan")), "its cost is nan, not a number from"),
        (lambda f: f.update(is_complete=1), "its is_complete is 1, not true or false"),
        (lambda f: f.update(unit="hours"), "its unit is 'hours', not bytes or seconds"),
        (lambda f: f.update(homes=[]), r"its homes is \[\], not an object"),
        (lambda f: f.update(batch=["[3] floaty"]), r"batch\[0\]: '\[3\] floaty' is no"),
        (lambda f: f.update(batch=["[3] nn"]), "is no shape and dtype, such as"),
        (lambda f: f["mesh"].pop("axes"), "mesh: it has no 'mesh.axes'"),
        (lambda f: f["mesh"].update(axes="a"), "mesh: .*'a'"),
        (lambda f: f["layouts"].__setitem__(0, "S"), r"layouts\[0\]: 'S' are no place"),
        (lambda f: f["layouts"].__setitem__(0, "B"), r"layouts\[0\]: .* 2 axes, got 1"),
        (lambda f: f["signatures"].__setitem__(0, "B"), r"signatures\[0\]: 'B' is no"),
        (lambda f: move_home(f, "0.weight", "99"), "layout 99 is not there; .* 0 to"),
        (lambda f: move_home(f, "0.weight", "x"), "layout x is not there"),
        (lambda f: move_home(f, "0.wieght", "0"), "none of its states; the nearest is"),
        (lambda f: f["homes"]["0"].append("{0-1}.bias"), "homes name '[02].bias'"),
        (lambda f: f["homes"]["0"].append("x.{0-9999999}"), "more than 1000000 names"),
        (lambda f: f["homes"].update({"0": "all"}), "is 'all', not a list of names"),
        (lambda f: f["operators"].append("mm_#|1 77"), "signature 77 is not there"),
        (lambda f: f["operators"].append("mm_#|1"), "has 1 words, not 2"),
        (lambda f: f["operators"].append("mm_#|x 0"), "x"),
        (lambda f: f["operators"].append({"times": -1, "of": []}), "is no repeat"),
        (lambda f: f["operators"].append({"times": 9**9, "of": ["a"]}), "repeats make"),
        (lambda f: f["boxings"].append("mm_#|1 0-1"), "'0-1' is no pair of layouts"),
        (lambda f: f["boxings"].append("mm_#|1 0>55"), "layout 55 is not there"),
        (lambda f: f.update(machine={}), "machine: "),
        (lambda f: f.update(storage={"gradient": "x"}), "its storage.gradient is 'x'"),
        (lambda f: f.update(moves=[[1]]), r"moves\[0\]: \[1\] is no row of 4"),
    ],
)
def test_what_cannot_be_read(
    edit: Callable[[File], object], said: str, planned: tuple[Plan, Graph]
) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.from_json(edited(planned[0], edit))


def first_operator(file: File, text: str) -> None:
    """Give the first operator another signature."""
    file["signatures"].append(text)
    name = file["operators"][0].rsplit(" ", 1)[0]
    file["operators"][0] = f"{name} {len(file['signatures']) - 1}"


def layout(file: File, text: str) -> str:
    """The number of a layout, which is added."""
    file["layouts"].append(text)
    return str(len(file["layouts"]) - 1)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda f: move_home(f, "0.weight", layout(f, "S(5), B")),
            "it has dims 0 to 1",
        ),
        (lambda f: move_home(f, "0.weight", layout(f, "P(sum), B")), "B or S.dim."),
        (lambda f: first_operator(f, "B -> B"), "one for each axis: "),
        (lambda f: first_operator(f, "S(1), S(1), S(1) -> B; B -> B"), "divides"),
        (lambda f: f["operators"].pop(), "says nothing of the operator"),
        (lambda f: f["operators"].append("mn_#|1 0"), "names operator 'mn_1', which"),
        (lambda f: f["boxings"].append("mn_#|1 0>0"), "name tensor 'mn_1', which"),
        (lambda f: f["boxings"].clear(), "which no boxing of the plan makes"),
    ],
)
def test_what_does_not_go_with_the_model(
    edit: Callable[[File], object], said: str, planned: tuple[Plan, Graph]
) -> None:
    ours, graph = planned
    theirs = Plan.from_json(edited(ours, edit))
    with pytest.raises(PlanError, match=said):
        check_division(graph, theirs.division)
    with pytest.raises(PlanError, match=said):
        theirs.explain(graph, "0.weight")


def test_boxings_are_found_for_homes_edited_in_the_file(
    planned: tuple[Plan, Graph],
) -> None:
    ours, graph = planned

    def split(file: File) -> None:
        move_home(file, "0.weight", layout(file, "S(1), B"))

    by_file = Plan.from_json(edited(ours, split)).routed(graph)
    by_hand = ours.with_home(graph, "0.weight", [S(1), B])
    assert by_file.division.homes == by_hand.division.homes
    assert by_file.cost == pytest.approx(by_hand.cost)
    check_division(graph, by_file.division)


def test_every_plan_passes_its_own_check(planned: tuple[Plan, Graph]) -> None:
    ours, graph = planned
    check_division(graph, ours.division)
    check_division(graph, Plan.from_json(ours.to_json()).division)
