"""Autocast in bf16 and fp16, and the loss scale, equal on all ranks."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.events import Event, StepDone
from placet.job.job import Job
from placet.run.loss_scale import LossScale
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.models import Everything, made_data, mean_loss
from tests.job.trial import Trial


@dataclass
class Seen:
    """What a rank saw, step by step."""

    losses: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)

    def __call__(self, job: Job, event: Event) -> None:
        if isinstance(event, StepDone):
            self.losses.append(event.loss)
            self.skipped.append(event.skipped)
            scale = job.training.scale
            self.scales.append(scale.value if scale else 0.0)
            job.training.settle()
            flat = [p.detach().flatten() for p in job.training.parts.values()]
            self.parameters.append(torch.cat(flat).clone())


def in_single() -> tuple[nn.Module, Data]:
    """A model and its data in float32."""
    trial = Trial(lambda: Everything(0.0), lambda m: AdamW(m.parameters()))
    x, y, _ = made_data()
    return trial.made_model().float(), Data(TensorDataset(x.float(), y), 16)


def train(wire: Wire, precision: Any, zero: Any) -> tuple[Seen, set[torch.dtype]]:
    """Three steps; and the dtypes that a layer computed in.

    Threads share autocast's cache of casts, so the last digits vary here.
    """
    model, data = in_single()
    seen, dtypes = Seen(), set[torch.dtype]()

    def watch(module: nn.Module, args: Any, output: Tensor) -> None:
        dtypes.add(output.dtype)

    model.get_submodule("blocks.0.up").register_forward_hook(watch)
    optimizer = SGD(model.parameters(), lr=0.1)
    job = Job(
        model,
        mean_loss,
        optimizer,
        data,
        precision=precision,
        zero=zero,
        accumulate=2,
        callbacks=[seen],
        wire=wire,
    )
    if job.training.scale is not None:
        job.training.scale = LossScale(2.0**8)  # the first, 2^16, may overflow here
    job.fit(3)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return seen, dtypes


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("zero", [0, 3])
def test_half_precision_is_near_single(precision: str, zero: int) -> None:
    full = run_threads(1, train, "fp32", 0)[0][0]
    for seen, dtypes in run_threads(2, train, precision, zero):
        assert dtypes == {torch.bfloat16 if precision == "bf16" else torch.float16}
        assert seen.losses == pytest.approx(full.losses, rel=0.02)
        assert seen.losses != full.losses
        assert not any(seen.skipped)


def overflow(wire: Wire, zero: Any) -> Seen:
    """Only the last rank's rows overflow, in the second of three steps."""
    model, data = in_single()
    seen, steps = Seen(), 0

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal steps
        steps += 1
        value = mean_loss(model, batch)
        if steps == 2 and wire.rank == wire.num_ranks - 1:
            value = value + model.get_parameter("one").sum() * torch.inf
        return value

    job = Job(
        model,
        loss,
        SGD(model.parameters(), lr=0.1, momentum=0.9),
        data,
        precision="fp16",
        zero=zero,
        callbacks=[seen],
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
        wire=wire,
    )
    job.fit(3)
    # The schedule did not move on in the step that was skipped.
    assert job.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2
    return seen


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_overflow_on_one_rank_is_skipped_on_all(zero: int) -> None:
    for seen in run_threads(3, overflow, zero):
        assert seen.skipped == [False, True, False]
        assert seen.scales == [2.0**16, 2.0**15, 2.0**15]
        first, second, third = seen.parameters
        assert torch.equal(first, second)
        assert third.isfinite().all()
        assert not torch.equal(second, third) or not third.numel()
