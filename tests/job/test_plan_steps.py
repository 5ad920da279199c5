"""Divisions of a job's steps: tensors from elsewhere are the same on all ranks."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from placet.errors import RanksDiffer
from placet.job.plan_steps import Divides
from placet.placement.mesh import Mesh
from placet.planner.plan import Plan
from placet.planner.planning import plan
from placet.run.planned_start import start_planned
from placet.wire.interface import Wire
from testing.ranks import run_threads

X = torch.arange(24.0, dtype=torch.float64).view(6, 4) / 9


class Scaled(nn.Module):
    """A layer whose output is multiplied by a plain tensor."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, dtype=torch.float64)
        nn.init.constant_(self.layer.weight, 0.3)
        nn.init.zeros_(self.layer.bias)
        self.scale = torch.full((3,), scale, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) * self.scale
        return found


def loss(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x).square().mean()
    return found


@cache
def planned() -> Plan:
    """The plan for two ranks."""
    return plan(
        Scaled(1.0),
        X,
        loss,
        mesh=Mesh("a=2"),
        objective="bytes",
        optimizer="sgd",
        time_limit_seconds=5,
    )


def losses(wire: Wire, by: Plan, scales: list[float]) -> list[float]:
    """Losses of two steps; the plain tensor is doubled in between."""
    model = Scaled(scales[wire.rank])
    optimizer = SGD(model.parameters(), lr=0.0)
    divides = Divides(model, loss, "fp32", by, wire)
    training = start_planned("scaled", model, optimizer, wire, divides, X)
    found = []
    for step in (1, 2):
        training.begin(step)
        found.append(training.step(X, len(X)).loss)
        model.scale.mul_(2)
    return found


def test_plain_tensors_are_read_as_they_are_at_each_step() -> None:
    for first, second in run_threads(2, losses, planned(), [1.0, 1.0]):
        assert first == pytest.approx(loss(Scaled(1.0), X).item(), rel=1e-9)
        assert second == pytest.approx(4 * first, rel=1e-9)


def test_plain_tensors_that_differ_between_ranks_are_refused() -> None:
    with pytest.raises(RanksDiffer, match=r"rank 1 differs from rank 0 in 'scale'"):
        run_threads(2, losses, planned(), [1.0, 1.5])
