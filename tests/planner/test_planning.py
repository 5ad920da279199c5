"""plan(): what comes out for small modules, and what it says of bad input."""

import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from placet.errors import PlanError
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.planner.planning import plan
from placet.planner.wanted import parse_bytes

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
        (Pin("layer9.*", home=S(0)), "matches no state; there are 0.weight, 0.bias"),
        (Pin("0.bias", home=S(1)), r"S\(1\).* is none of what 0.bias can have: "),
        (Pin("0", output=P("max")), r"P\(max\).* is none of what 0:linear can have"),
    ],
)
def test_a_pin_without_a_choice_says_what_there_is(pin: Pin, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        planned(perceptron(8, 8), batch_of(8, 8, 8), mesh=Mesh("a=4"), pins=[pin])


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 ranks, the cluster has 4"):
        planned(perceptron(8, 8), batch_of(8, 8, 8), mesh=Mesh("a=2"))


def test_seconds_need_no_bytes() -> None:
    found = planned(perceptron(8, 8, 8), batch_of(16, 8, 8), objective="seconds")
    assert found.unit == "seconds"
    assert 0 < found.bound <= found.cost < 1


def test_operators_without_a_signature_are_reported() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.linalg.qr(x.detach())[0]

    model = nn.Sequential(nn.Linear(8, 8), Turned())
    found = planned(model, batch_of(8, 8, 8), mesh=Mesh("a=4"))
    assert any("linalg_qr" in note and "in 1" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("500 MB", 5e8), (1024, 1024), ("7", 7)]
)
def test_sizes_are_read(text: str | int, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "8 XB", "0"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a size such as '8GiB'"):
        parse_bytes(text)
