"""A job with a plan trains as one rank without a plan does."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.job import Job
from placet.placement.mesh import Mesh
from placet.planner.planning import plan
from placet.planner.pins import Pin
from placet.placement.placement import S
from tests.job.trial import Trial, assert_same_run, train_on

class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(5, 12)
        self.norm = nn.LayerNorm(12)
        self.down = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(F.gelu(self.up(x))))


def planned(trial: Trial, mesh: str, **options) -> Trial:
    model, data = trial.made_model(), trial.made_data()
    from placet.job.plan_job import first_batch
    made = plan(model, first_batch(data), trial.made_loss(), mesh=Mesh(mesh), objective="bytes", time_limit_seconds=5.0, **options)
    return replace(trial, bytes_vary=True, options={**trial.options, "plan": made})

def sgd(model): return SGD(model.parameters(), lr=0.1, momentum=0.9)
def adam(model): return Adam(model.parameters(), lr=0.02)

@pytest.mark.parametrize("mesh", ["a=2", "a=2, b=2"])
@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("masked", [False, True])
def test_planned(mesh, make, masked):
    trial = Trial(Mlp, make, steps=6, masked=masked, options={"clip_norm": 0.5, "scheduler": lambda o: StepLR(o, 2, 0.5)})
    alone = train_on(1, trial)[0]
    two = planned(trial, mesh, pins=[Pin("*.weight", home=S(0), axis="a")])
    for one in train_on(Mesh(mesh).num_ranks, two):
        assert_same_run(one, alone, tolerance=1e-9)
