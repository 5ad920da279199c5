"""Evaluations of a planned job: divided as its steps are, equal to one device's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.events import Event, StepDone
from placet.job.plan_job import steps_of
from placet.run.planned_training import PlannedTraining
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.models import MASKED, made_data
from tests.job.planned_trials import SPLIT, ConvNet, Mlp, adam, make_job, planned
from tests.job.trial import Trial


def means(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """A mean over rows and one over targets."""
    x, y = batch
    right = (model(x).argmax(1) == y).double() * (y != MASKED)
    return {"size": model(x).square().mean(), "right": (right.mean(), len(y))}


def selects(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """A mean over some rows, which are chosen by their values."""
    x, y = batch
    return {"chosen": (model(x)[y > 1].square().mean(), int((y > 1).sum()))}


def validation() -> Data:
    """23 rows in batches of 9; the last one has 5."""
    x, y, _ = made_data(73)
    return Data(TensorDataset(x[50:], y[50:]), 9)


def evaluated(wire: Wire, trial: Trial, metrics: Any) -> tuple[Any, list[bool]]:
    """What two evaluations find, and whether parameters were whole after the second."""
    job = make_job(wire, trial, validation=validation(), metrics=metrics)
    found = []
    whole = []

    def watch(_: Any, event: Event) -> None:
        if isinstance(event, StepDone):
            found.append(job.evaluate())
            if isinstance(job.training, PlannedTraining):
                whole.append(job.training.wholes.is_current)

    watch.reads_parameters = False  # type: ignore[attr-defined]
    job.callbacks.append(watch)
    job.fit(2)
    assert job.model.training
    if isinstance(job.training, PlannedTraining):
        assert bool(steps_of(job.training).not_captured) == (metrics is selects)
    return found, whole


@pytest.mark.parametrize(
    ("model", "metrics", "is_whole"),
    [(Mlp, means, [True, False]), (Mlp, selects, [True, True]), (ConvNet, None, [])],
)
def test_evaluations_are_one_devices(
    model: Any, metrics: Any, is_whole: list[bool]
) -> None:
    trial = Trial(model, adam)
    ((alone, _),) = run_threads(1, evaluated, trial, metrics)
    for found, whole in run_threads(
        2, evaluated, planned(trial, "a=2", SPLIT), metrics
    ):
        for ours, theirs in zip(found, alone, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
        # The first evaluation is captured, for which parameters are brought once.
        assert whole == is_whole or not is_whole


def test_measuring_runs_no_backward_and_keeps_homes() -> None:
    trial = planned(Trial(Mlp, adam), "a=2", SPLIT)

    def measured(wire: Wire) -> tuple[Any, int, Any]:
        job = make_job(wire, trial, validation=validation())
        job.fit(1)
        job.evaluate()
        training = job.training
        assert isinstance(training, PlannedTraining)
        kinds = [k for k in training._kinds.values() if k.step.graph.loss is None]
        homes = steps_of(training).plan.division.homes
        for kind in kinds:
            assert all(op.phase == "forward" for op in kind.step.graph.ops)
            for name, home in kind.divided.division.homes.items():
                assert home == homes[name]
        return job.evaluate()["loss"], len(kinds), training.ledger.mismatched

    with torch.no_grad():
        first, second = run_threads(2, measured)
    assert first == second
    assert first[1:] == (2, [])
