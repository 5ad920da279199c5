"""plan(): what comes out for small modules, and what it says of bad input."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from placet.errors import PlanError
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.planner.matmul_bound import bound_words
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.planner.planning import graph_for, plan
from placet.planner.problem import Solution
from placet.planner.search import solve
from placet.planner.wanted import parse_bytes
from placet.program.graph import Graph

Batch = tuple[Tensor, Tensor]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def perceptron(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, n in pairwise(sizes):
        layers += [nn.Linear(k, n), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch_of(rows: int, width: int, classes: int) -> Batch:
    return torch.randn(rows, width), torch.randint(classes, (rows,))


def planned(model: nn.Module, batch: Batch, num_ranks: int = 4, **options) -> Plan:
    options = {"objective": "bytes", **options}
    return plan(model, batch, loss, cluster=Cluster.here(num_ranks), **options)


def test_a_large_batch_is_split_and_gradients_are_reduced() -> None:
    model = perceptron(8, 8, 8)
    found = planned(model, batch_of(4096, 8, 8), mesh=Mesh("a=4"))
    weights = sum(p.numel() for p in model.parameters()) * 4
    statistics = 3 * 4  # loss sums and counts, at most
    assert weights * 2 * 3 / 4 == pytest.approx(found.cost, abs=2 * statistics)
    assert found.gap == 0


def test_wide_layers_are_split_themselves() -> None:
    """Weights of 512 x 512 and a batch of 8: activations travel, not weights."""
    model = perceptron(512, 512, 512)
    found = planned(model, batch_of(8, 512, 512), mesh=Mesh("a=4"))
    one_weight = 512 * 512 * 4
    assert found.cost < one_weight / 8
    assert any(
        S(0) in x.placements or S(1) in x.placements
        for x in found.division.homes.values()
    )


def test_the_bound_is_of_all_meshes() -> None:
    found = planned(perceptron(16, 16, 16), batch_of(64, 16, 16))
    assert {str(tried.mesh) for tried in found.meshes} == {
        "Mesh('a=4')",
        "Mesh('a=2, b=2')",
    }
    assert found.bound <= min(tried.bound for tried in found.meshes) + 1e-9
    assert found.cost == min(t.cost for t in found.meshes if t.cost is not None)


def test_memory_is_kept_and_costs_bytes() -> None:
    model, batch = perceptron(64, 64, 64, 64), batch_of(256, 64, 64)
    free = planned(model, batch, mesh=Mesh("a=4"), memory="1GiB")
    limit = int(0.8 * free.memory_bytes)
    tight = planned(model, batch, mesh=Mesh("a=4"), memory=limit)
    assert tight.memory_bytes <= limit
    assert tight.cost >= free.cost - 1e-6
    assert tight.bound >= free.bound - 1e-6


def test_a_memory_too_small_says_what_would_do() -> None:
    model, batch = perceptron(64, 64), batch_of(8, 64, 64)
    with pytest.raises(PlanError) as caught:
        planned(model, batch, memory="1KiB")
    found = re.search(
        r"fits in 1.0 KiB a rank, ([\d.]+) KiB would do", str(caught.value)
    )
    assert found is not None, caught.value
    enough = float(found[1]) * 1.02  # it is printed rounded
    assert planned(model, batch, memory=int(enough * 1024)).gap >= 0


def test_pins_decide() -> None:
    model, batch = perceptron(8, 8, 8), batch_of(64, 8, 8)
    pins = [Pin("*.weight", home=S(1)), Pin("0", output=S(1))]
    found = planned(model, batch, mesh=Mesh("a=2"), num_ranks=2, pins=pins)
    homes = found.division.homes
    assert homes["0.weight"].placements == homes["2.weight"].placements == (S(1),)
    first = next(name for name in found.division.signatures if name.startswith("addmm"))
    assert found.division.signatures[first][0].outputs == (S(1),)


def test_a_forbidden_placement_is_not_taken() -> None:
    model, batch = perceptron(8, 8, 8), batch_of(64, 8, 8)
    pins = [Pin("*", home=B, forbid=True)]
    found = planned(model, batch, mesh=Mesh("a=2"), num_ranks=2, pins=pins)
    assert all(x.placements != (B,) for x in found.division.homes.values())


@pytest.mark.parametrize(
    ("pin", "text"),
    [
        (Pin("layer9.*", home=S(0)), "no parameter or buffer; there are 0.weight, 0.b"),
        (Pin("0.wieght", home=S(0)), "the nearest is '0.weight'"),
        (Pin("0.bias", home=S(1)), r"S\(1\).* is none of what 0.bias can have: "),
        (Pin("0", output=P("max")), r"P\(max\).* is none of what 0:linear can have"),
    ],
)
def test_a_pin_without_a_choice_says_what_there_is(pin: Pin, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        planned(perceptron(8, 8), batch_of(8, 8, 8), mesh=Mesh("a=4"), pins=[pin])


def test_pins_with_an_axis_leave_the_meshes_that_have_it() -> None:
    model, batch = perceptron(8, 8), batch_of(8, 8, 8)
    found = planned(model, batch, pins=[Pin("0.weight", "b", home=S(0))])
    assert [tried.mesh for tried in found.meshes] == [Mesh("a=2, b=2")]
    assert found.division.homes["0.weight"].placement("b") == S(0)
    with pytest.raises(ValueError, match="tried have the axes a, b; give one of your"):
        planned(model, batch, pins=[Pin("0.weight", "model", home=S(0))])


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 ranks, the cluster has 4"):
        planned(perceptron(8, 8), batch_of(8, 8, 8), mesh=Mesh("a=2"))


def test_seconds_need_no_bytes() -> None:
    found = planned(perceptron(8, 8, 8), batch_of(16, 8, 8), objective="seconds")
    assert found.unit == "seconds"
    assert 0 < found.bound <= found.cost < 1


def test_the_figures_of_a_plan_in_seconds() -> None:
    found = planned(perceptron(8, 8, 8), batch_of(16, 8, 8), objective="seconds")
    assert found.overlapped is not None
    assert found.overlapped.bound_seconds <= found.overlapped.seconds
    assert found.overlapped.seconds <= found.cost * (1 + 1e-9)
    assert found.overlapped.gap >= 0
    text = str(found)
    for word in ("cost", "bound", "gap", "overlap", "matmuls", "memory", "found"):
        assert f"\n  {word} " in text
    again = Plan.from_json(found.to_json())
    assert replace(again, search_seconds=found.search_seconds) == found
    edited = again.routed(graph_of_plan(found))
    assert edited.cost <= found.cost * (1 + 1e-9)  # by the machine that it was made for


def graph_of_plan(found: Plan) -> Graph:
    model, batch = perceptron(8, 8, 8), batch_of(16, 8, 8)
    return graph_for(model, batch, loss, num_ranks=found.mesh.num_ranks)


def test_the_bytes_of_products_are_held_against_their_bound() -> None:
    """A square product, cut along its sum, and that of its weight's gradient."""
    model, batch = perceptron(64, 64), batch_of(64, 64, 64)
    pins = [Pin("0.weight", home=S(1)), Pin("0.bias", home=B), Pin("0", input=S(1))]
    found = planned(model, batch, num_ranks=4, mesh=Mesh("a=4"), pins=pins)
    words = bound_words((64, 64, 64), 4)
    scattered = 64 * 64 * 3 / 4  # of the output; its gradient goes all-to-all
    assert found.matmul_ratio is not None
    assert found.matmul_ratio == pytest.approx(
        (scattered + scattered / 4) / (2 * words), rel=1e-3
    )
    assert planned(model, batch, mesh=Mesh("a=1"), num_ranks=1).matmul_ratio is None


def test_a_gap_that_is_asked_for_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def watched(*args: object, **options: object) -> Solution:
        asked.append(options["gap"])
        return solve(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("placet.planner.planning.solve", watched)
    found = planned(
        perceptron(8, 8, 8), batch_of(16, 8, 8), mesh=Mesh("a=2, b=2"), gap=0.2
    )
    assert asked == [0.2]
    assert found.gap <= 0.2
    assert found.is_complete


def test_a_search_out_of_time_gives_its_best_and_says_so() -> None:
    model, batch = perceptron(8, 8, 8), batch_of(16, 8, 8)
    found = planned(model, batch, mesh=Mesh("a=4"), time_limit_seconds=1e-9)
    assert not found.is_complete
    assert found.bound <= found.cost
    assert "\n  stopped  by its time limit" in str(found)
    assert not Plan.from_json(found.to_json()).is_complete


def test_a_batch_that_no_number_of_ranks_divides() -> None:
    found = planned(perceptron(8, 8, 8), batch_of(7, 8, 8), mesh=Mesh("a=4"))
    assert found.gap == 0


def test_operators_without_a_signature_are_reported() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.linalg.qr(x.detach())[0]

    model = nn.Sequential(nn.Linear(8, 8), Turned())
    found = planned(model, batch_of(8, 8, 8), mesh=Mesh("a=4"))
    (note,) = found.notes
    assert note.startswith("aten.linalg_qr in 1, test_planning.py:")
    assert note.endswith("no signature is known, so every rank runs it whole")


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("500 MB", 5e8), (1024, 1024), ("7", 7)]
)
def test_sizes_are_read(text: str | int, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "8 XB", "0"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a size such as '8GiB'"):
        parse_bytes(text)
