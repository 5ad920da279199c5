"""BatchNorm under accumulation: micro-batches are the same on any number of ranks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.events import StepDone
from placet.job.job import Job
from testing.ranks import run_threads


def losses_of(wire, zero, model, rows):
    losses: list[float] = []

    def keep(job, event):
        if isinstance(event, StepDone):
            losses.append(event.loss)

    job = Job(
        copy.deepcopy(model),
        lambda m, batch: functional.cross_entropy(m(batch[0]), batch[1]),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        Data(rows, 16),
        steps=8,
        zero=zero,
        accumulate=2,
        callbacks=[keep],
        wire=wire,
    )
    job.fit()
    assert not job.training.ledger.mismatched
    return losses


@pytest.mark.parametrize(("num_ranks", "zero"), [(2, 0), (3, 2), (4, 3)])
def test_batch_norm_with_accumulation_equals_one_rank(num_ranks, zero):
    torch.manual_seed(0)
    x = torch.randn(48, 12, dtype=torch.float64)
    rows = TensorDataset(x, torch.randint(0, 5, (48,)))
    model = nn.Sequential(
        nn.Linear(12, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5)
    ).double()
    expected = run_threads(1, losses_of, 0, model, rows)[0]
    for found in run_threads(num_ranks, losses_of, zero, model, rows):
        assert found == pytest.approx(expected, rel=1e-12)
