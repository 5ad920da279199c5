"""Trials of jobs with a plan: models, optimizers, plans."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from placet.job.job import Job
from placet.job.plan_job import first_batch
from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.planner.planning import plan
from placet.wire.interface import Wire
from tests.job.trial import Trial

SPLIT = Pin("*.weight", home=S(0), axis="a")


class Mlp(nn.Module):
    """Two layers and a norm, with a buffer that each step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(5, 12)
        self.norm = nn.LayerNorm(12)
        self.down = nn.Linear(12, 5)
        self.register_buffer("seen", torch.zeros(12, dtype=torch.float64))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(x))
        if self.training:
            self.seen.add_(hidden.detach().sum(0))
        out: Tensor = self.down(self.norm(hidden))
        return out


class ConvNet(nn.Module):
    """A convolution, normalised over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(30, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm(self.conv(x[:, None])))
        out: Tensor = self.head(hidden.flatten(1))
        return out


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> Optimizer:
    return Adam(model.parameters(), lr=0.02)


def planned(trial: Trial, mesh: str, *pins: Pin) -> Trial:
    """The trial with a plan."""
    found = plan_for(trial.model, trial.masked, trial.rows, mesh, pins)
    return replace(trial, bytes_vary=True, options={**trial.options, "plan": found})


@cache
def plan_for(
    model: Any, masked: bool, rows: int, mesh: str, pins: tuple[Pin, ...]
) -> Plan:
    """The plan for such trials."""
    trial = Trial(model, sgd, masked=masked, rows=rows)
    return plan(
        trial.made_model(),
        first_batch(trial.made_data()),
        trial.made_loss(),
        mesh=Mesh(mesh),
        objective="bytes",
        pins=pins,
        time_limit_seconds=5.0,
    )


def make_job(wire: Wire, trial: Trial, **others: Any) -> Job:
    """A job of a trial."""
    model = trial.made_model()
    options = {**trial.options, **others}
    optimizer = options.pop("optimizer", trial.optimizer)(model)
    loss = options.pop("loss", trial.made_loss())
    return Job(model, loss, optimizer, trial.made_data(), wire=wire, **options)
