"""Tensors that are there already are inputs of a captured step, read as they are."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placet.placement.mesh import Mesh
from placet.program.capture import Captured, capture, state_tensors
from placet.program.interpret import interpret
from placet.program.normalise.normalise import normalise
from testing.planned import assert_same_as_one_device, random_division

X = torch.arange(24.0, dtype=torch.float64).view(6, 4) / 9
Y = torch.tensor([0, 2, 1, 2, 0, 1])


class Scaled(nn.Module):
    """A layer whose output is multiplied by plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()
        self.scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
        self.shifts = [torch.ones(3, dtype=torch.float64)]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) * self.scale + self.shifts[0]
        return found


def classes(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def run(model: nn.Module, captured: Captured, batch: Any) -> Tensor:
    """The loss."""
    graph = captured.graph
    states = state_tensors(model, graph, captured.foreign)
    assert graph.loss is not None
    return interpret(graph, states, captured.flatten(batch))[graph.loss]


def test_plain_tensors_are_states_by_name() -> None:
    model = Scaled()
    captured = capture(model, (X, Y), classes)
    foreign = [s.name for s in captured.graph.states if s.is_foreign]
    assert foreign == ["scale", "foreign_1"]
    assert captured.foreign["scale"] is model.scale
    expected = classes(model, (X, Y)).detach()
    torch.testing.assert_close(run(model, captured, (X, Y)), expected)


def test_each_step_reads_what_a_plain_tensor_then_holds() -> None:
    model = Scaled()
    captured = capture(model, (X, Y), classes)
    first = run(model, captured, (X, Y))
    model.scale.mul_(3)
    expected = classes(model, (X, Y)).detach()
    assert not torch.equal(first, expected)
    torch.testing.assert_close(run(model, captured, (X, Y)), expected)


def test_a_large_table_and_what_a_loss_holds() -> None:
    table = torch.randn(300, 300, dtype=torch.float64)  # above what a plan writes down
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double().eval()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch[0])
        near = (model(batch[0]) - wanted).square().mean()
        extra = F.cross_entropy(model(batch[0]), batch[1], weight=weight)
        return near + extra + table[:6, :4].mul(batch[0]).mean()

    model, batch = nn.Linear(4, 3).double(), (X, Y)
    captured = capture(model, batch, loss)
    shapes = sorted(tuple(t.shape) for t in captured.foreign.values())
    assert shapes == sorted([(300, 300), (3,), (3, 4), *[(3,)] * 5])
    graph = normalise(captured.graph, 2)
    states = {
        n: t.detach().clone()
        for n, t in state_tensors(model, graph, captured.foreign).items()
    }
    division = random_division(graph, Mesh("a=2"), seed=1)
    assert_same_as_one_device(captured, graph, division, states, batch)
    torch.testing.assert_close(run(model, captured, batch), loss(model, batch).detach())


def test_a_parameter_in_a_closure_is_the_models() -> None:
    model = nn.Linear(4, 3).double()
    weight = model.weight

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return classes(model, batch) + weight.square().sum()

    captured = capture(model, (X, Y), loss)
    assert not captured.foreign
    found = interpret(
        captured.graph, state_tensors(model, captured.graph), captured.flatten((X, Y))
    )
    loss(model, (X, Y)).backward()
    (state,) = (s for s in captured.graph.states if s.name == "weight")
    assert state.new is not None
    assert weight.grad is not None
    torch.testing.assert_close(found[state.new], weight.grad)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_fingerprint_is_of_shapes_not_of_values(device: str) -> None:
    one, two = Scaled(), Scaled()
    two.scale = torch.rand(3, dtype=torch.float64)
    for model in (one, two):
        model.to(device)
    batch = (X.to(device), Y.to(device))
    first = capture(one, batch, classes).fingerprint
    assert capture(two, batch, classes).fingerprint == first
    two.scale = torch.rand(1, dtype=torch.float64)
    assert capture(two, batch, classes).fingerprint != first


def test_gradient_hooks_are_part_of_the_step() -> None:
    model = nn.Linear(4, 3).double()
    model.weight.register_hook(lambda grad: 3 * grad.clamp(max=0.01))
    captured = capture(model, (X, Y), classes)
    found = interpret(
        captured.graph, state_tensors(model, captured.graph), captured.flatten((X, Y))
    )
    classes(model, (X, Y)).backward()
    (state,) = (s for s in captured.graph.states if s.name == "weight")
    assert state.new is not None
    assert model.weight.grad is not None
    torch.testing.assert_close(found[state.new], model.weight.grad)


@pytest.mark.parametrize("size", [8, 70_000])
def test_numbers_written_in_a_forward(size: int) -> None:
    values = [i / size for i in range(size)]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        table = torch.tensor(values, dtype=torch.float64)
        return classes(model, batch) + table[3:7].square().sum() + table.sum()

    model = nn.Linear(4, 3).double()
    captured = capture(model, (X, Y), loss)
    assert len(captured.foreign) == (size > 8)
    found = run(model, captured, (X, Y))
    torch.testing.assert_close(found, loss(model, (X, Y)).detach())
