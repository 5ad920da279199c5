"""A job on a GPU: the same numbers as on the CPU, and everything on the device."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.events import StepDone
from placet.job.job import Job
from placet.job.setup import home

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def plain_losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for start in range(0, len(x), 16):
        found = loss(model, [x[start : start + 16], y[start : start + 16]])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_job_on_a_gpu_equals_plain_torch_on_the_cpu(zero):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Linear(32, 5))
    model.double()
    x = torch.randn(64, 12, dtype=torch.float64)
    y = torch.randint(0, 5, (64,))
    expected = plain_losses(copy.deepcopy(model), x, y)
    losses: list[float] = []

    def keep(job: Job, event: object) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)

    data = Data(TensorDataset(x, y), batch_size=16, shuffle=False)
    job = Job(
        model,
        loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        data,
        steps=4,
        zero=zero,
        callbacks=[keep],
    )
    job.fit()
    assert home().type == "cuda"
    assert {p.device.type for p in job.model.parameters()} == {"cuda"}
    assert losses == pytest.approx(expected, rel=1e-9)


def test_job_in_bf16_on_a_gpu_trains():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))
    x, y = torch.randn(256, 12), torch.randint(0, 5, (256,))
    losses: list[float] = []

    def keep(job: Job, event: object) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)

    job = Job(
        model,
        loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        Data(TensorDataset(x, y), batch_size=256),
        steps=60,
        precision="bf16",
        callbacks=[keep],
    )
    job.fit()
    assert losses[-1] < 0.7 * losses[0]
