"""Jobs whose ranks are processes on gloo, with the order of all moves checked."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from placet.job.events import Event, StepDone
from placet.job.job import Job
from placet.wire.interface import Wire
from placet.wire.twin import single
from testing.ranks import run_ranks, run_threads
from tests.job.models import ConvNet, Everything, made_data, mean_loss
from tests.job.trial import Run, Trial, assert_same_run, train

pytestmark = pytest.mark.procs


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-2)


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def recomputed() -> nn.Module:
    return Everything(recompute=True)


def freeze_and_thaw(model: nn.Module, step: int) -> None:
    if step in (3, 6):
        for parameter in model.get_submodule("blocks.1").parameters():
            parameter.requires_grad_(step == 6)


TRIALS = [
    (Trial(Everything, adamw, masked=True, options={"accumulate": 2}), (0, 1, 2, 3)),
    (Trial(Everything, sgd, at_step=freeze_and_thaw, steps=9), (0, 1, 3)),
    (Trial(recomputed, adamw, options={"clip_norm": 0.5}, steps=5), (2, 3)),
    (Trial(ConvNet, sgd, masked=True), (0, 3)),
]


def train_all(wire: Wire) -> list[Run]:
    """All trials in one set of processes: starting them is what costs."""
    return [
        train(wire, Trial(**{**vars(trial), "zero": zero}))
        for trial, levels in TRIALS
        for zero in levels
    ]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_job_in_processes_is_as_on_one_device(num_ranks: int) -> None:
    # Here and not in a thread: activation checkpointing restores the main generator.
    alone = [train(single(), trial) for trial, levels in TRIALS for _ in levels]
    for runs in run_ranks(num_ranks, train_all, check_order=True, timeout=150.0):
        assert runs is not None
        for run, expected in zip(runs, alone, strict=True):
            assert_same_run(run, expected)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that draw their own augmentation."""

    def __init__(self) -> None:
        x, y, _ = made_data()
        self.rows = TensorDataset(x, y)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[index]
        return x + 0.1 * torch.randn(x.shape, dtype=x.dtype), y


def train_with_loader(wire: Wire, num_workers: int) -> list[float]:
    """A stranger's DataLoader, adopted as it is."""
    model = Trial(Everything, adamw).made_model()
    losses: list[float] = []

    def watch(job: Job, event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)

    loader = DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=num_workers)
    job = Job(
        model, mean_loss, adamw(model), loader, steps=6, callbacks=[watch], wire=wire
    )
    job.fit()
    return losses


def test_a_loader_with_workers_is_adopted() -> None:
    alone = run_threads(1, train_with_loader, 0)[0]
    assert len(set(alone)) == 6
    found: list[Any] = run_ranks(2, train_with_loader, 2, timeout=100.0)
    for losses in found:
        assert losses == pytest.approx(alone, rel=1e-9)
