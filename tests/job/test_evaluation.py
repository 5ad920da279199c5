"""Evaluations are weighted means over a validation set, read as it says."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.job import Job
from placet.wire.interface import Wire
from testing.ranks import run_threads

ROWS = torch.arange(10.0, dtype=torch.float64)[:, None]


def means(wire: Wire, weight: float) -> dict[str, float]:
    """The mean of the rows, by metrics that weigh each row so much."""
    model = nn.Linear(1, 1, dtype=torch.float64)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    job = Job(
        model,
        optimizer=SGD(model.parameters(), lr=0.1),
        validation=Data(TensorDataset(ROWS), 4, drop_last=True),
        metrics=lambda _, batch: {"row": (batch[0].mean(), weight * len(batch[0]))},
        wire=wire,
    )
    return dict(job.evaluate())


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("weight", [1.0, 0.01])
def test_evaluation_counts_every_row_by_its_weight(num_ranks: int, weight: float):
    # Also the short last batch, and weights that add up to less than one.
    for found in run_threads(num_ranks, means, weight):
        assert found["row"] == pytest.approx(4.5)


def test_evaluation_over_no_targets_is_no_number():
    (found,) = run_threads(1, means, 0.0)
    assert math.isnan(found["row"])
