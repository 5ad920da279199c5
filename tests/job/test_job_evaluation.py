"""Validation and metrics as on one device; callbacks and what they hear, in order."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from placet.job.checkpoint import Checkpoints
from placet.job.data import Data
from placet.job.events import (
    Evaluated,
    Event,
    Finished,
    Result,
    Saved,
    Started,
    StepDone,
)
from placet.job.job import Job
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.models import MASKED, ConvNet, Everything, made_data, masked_loss
from tests.job.trial import Trial


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """One mean over rows, one over targets, one over none at all."""
    x, y = batch
    logits, kept = model(x), y != MASKED
    right = (logits.argmax(1) == y)[kept].double()
    return {
        "square": logits.square().mean(),
        "accuracy": (right.mean(), kept.sum()),
        "nothing": (torch.tensor(math.nan), 0),
    }


def validation() -> Data:
    """23 rows in batches of 9: parts of 3 and 2, and a last batch of 5."""
    x, _, masked = made_data(73)
    return Data(TensorDataset(x[50:], masked[50:]), 9, shuffle=True, drop_last=True)


@dataclass
class Watch:
    """All events, and what evaluations found."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, job: Job, event: Event) -> None:
        self.events.append(event)

    def evaluated(self) -> list[dict[str, float]]:
        return [dict(e.metrics) for e in self.events if isinstance(e, Evaluated)]

    def kinds(self) -> list[str]:
        return [type(e).__name__ for e in self.events]


def evaluate(
    wire: Wire, kind: type[nn.Module], zero: Any
) -> tuple[list[dict[str, float]], Any]:
    """Train 6 steps, evaluate after 4 and at the end."""
    trial, watch = Trial(kind, sgd, masked=True), Watch()
    model = trial.made_model()
    job = Job(
        model,
        masked_loss,
        sgd(model),
        trial.made_data(),
        steps=6,
        zero=zero,
        validation=validation(),
        evaluate_every=4,
        metrics=metrics,
        callbacks=[watch],
        wire=wire,
    )
    job.fit()
    assert model.training
    assert not job.training.ledger.mismatched
    x, y = validation().dataset.tensors
    model.eval()
    with torch.no_grad():
        logits = model(x)
    kept = y != MASKED
    expected = {
        "loss": float(F.cross_entropy(logits, y, ignore_index=MASKED)),
        "square": float(logits.square().mean()),
        "accuracy": float((logits.argmax(1) == y)[kept].double().mean()),
        "nothing": math.nan,
    }
    return watch.evaluated(), expected


@pytest.mark.parametrize("kind", [Everything, ConvNet])
def test_evaluation_is_over_the_whole_set(kind: type[nn.Module]) -> None:
    alone, expected = run_threads(1, evaluate, kind, 0)[0]
    assert alone[1] == pytest.approx(expected, nan_ok=True)
    for num_ranks, zero in ((2, 1), (3, 0), (4, 3)):
        for found, here in run_threads(num_ranks, evaluate, kind, zero):
            assert [e.keys() for e in found] == [e.keys() for e in alone]
            for ours, theirs in zip(found, alone, strict=True):
                assert ours == pytest.approx(theirs, rel=1e-9, nan_ok=True)
            assert found[1] == pytest.approx(here, nan_ok=True)


def told(wire: Wire, folder: Path | None) -> Watch:
    """What callbacks hear of 4 steps; each rank its own."""
    trial, watch, second = Trial(Everything, sgd), Watch(), Watch()
    model = trial.made_model()

    def result(job: Job, event: Event) -> None:
        if isinstance(event, Finished):
            job.emit(Result("Title", (("placet", 1.0),), "text"))

    job = Job(
        model,
        trial.made_loss(),
        sgd(model),
        trial.made_data(),
        steps=4,
        validation=trial.made_data(),
        evaluate_every=3,
        callbacks=[watch, result, second],
        checkpoints=Checkpoints(folder, every_steps=2) if folder else None,
        wire=wire,
    )
    job.fit()
    assert sorted(second.kinds()) == sorted(watch.kinds())
    assert job.status == "done"
    return watch


def test_callbacks_hear_events_in_order() -> None:
    for watch in run_threads(2, told, None):
        steps = ["StepDone"] * 3 + ["Evaluated", "StepDone", "Evaluated"]
        assert watch.kinds() == ["Started", *steps, "Finished", "Result"]
        started, *_, finished, result = watch.events
        assert isinstance(started, Started)
        assert (started.first_step, started.last_step) == (1, 4)
        assert started.plan.startswith("program job on Mesh('data=2')")
        assert isinstance(finished, Finished)
        assert (finished.status, finished.step) == ("done", 4)
        assert finished.ledger["boxings"] > 0
        assert finished.ledger["control"] > 0
        assert isinstance(result, Result)
        steps_done = [e for e in watch.events if isinstance(e, StepDone)]
        assert [e.step for e in steps_done] == [1, 2, 3, 4]
        assert [e.num_targets for e in steps_done] == [16, 16, 16, 2]
        assert all(e.seconds > 0 for e in steps_done)


def test_callbacks_hear_of_saves(tmp_path: Path) -> None:
    watch = run_threads(1, told, tmp_path)[0]
    saved = [e for e in watch.events if isinstance(e, Saved)]
    assert [e.step for e in saved] == [2, 4]
    kinds = watch.kinds()
    # A save is told of once it is complete, at the latest before the end.
    assert kinds.index("Saved") > kinds.index("StepDone") + 1
    assert kinds[-2:] == ["Finished", "Result"]
    assert kinds[0] == "Started"


def test_fit_goes_on_where_it_ended() -> None:
    def losses(wire: Wire, ends: tuple[int, ...]) -> list[float]:
        trial, watch = Trial(Everything, sgd), Watch()
        model = trial.made_model()
        job = Job(
            model,
            trial.made_loss(),
            sgd(model),
            trial.made_data(),
            callbacks=[watch],
            wire=wire,
        )
        for end in ends:
            job.fit(end)
        return [e.loss for e in watch.events if isinstance(e, StepDone)]

    assert run_threads(2, losses, (3, 3, 7)) == run_threads(2, losses, (7,))
