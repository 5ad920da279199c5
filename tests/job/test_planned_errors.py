"""After an error that all ranks of a planned job meet, the model is whole."""

import time

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from placet.job.events import Event, StepDone
from placet.job.job import Job
from placet.run import planned_state
from placet.run.planned_training import UNREADABLE
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.planned_trials import SPLIT, Mlp, make_job, planned, sgd
from tests.job.trial import Trial


class Fragile(SGD):
    """Does not step once it is `broken`."""

    broken = False

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        if self.broken:
            raise KeyError("no such step")
        return super().step(closure)


def fragile(model: nn.Module) -> Optimizer:
    """SGD that breaks on demand."""
    return Fragile(model.parameters(), lr=0.1)


def readable(job: Job) -> bool:
    """Whether the model's own parameters have values."""
    return all(bool(p.isfinite().all()) for p in job.model.parameters())


def test_an_error_in_a_step_leaves_whole_parameters() -> None:
    trial = planned(Trial(Mlp, fragile), "a=2", SPLIT)

    def failed(wire: Wire) -> tuple[bool, list[str]]:
        job = make_job(wire, trial)
        job.optimizer.broken = True  # type: ignore[attr-defined]
        with pytest.raises(KeyError, match="no such step") as caught:
            job.fit(3)
        return readable(job), getattr(caught.value, "__notes__", [])

    assert run_threads(2, failed) == [(True, [])] * 2


def test_an_error_between_steps_leaves_whole_parameters() -> None:
    trial = planned(Trial(Mlp, sgd), "a=2, b=2", SPLIT)

    def failed(wire: Wire) -> list[torch.Tensor]:
        job = make_job(wire, trial)

        def spoil(_: Job, event: Event) -> None:
            if isinstance(event, StepDone):
                raise KeyError("no such thing")

        spoil.reads_parameters = False  # type: ignore[attr-defined]
        job.callbacks.append(spoil)
        with pytest.raises(KeyError, match="no such thing"):
            job.fit(3)
        assert readable(job)
        return [p.detach().clone() for p in job.model.parameters()]

    first, *others = run_threads(4, failed)
    for other in others:
        assert all(map(torch.equal, first, other))


def test_a_rank_that_fails_alone_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_state, "PATIENCE_SECONDS", 0.2)
    trial = planned(Trial(Mlp, sgd), "a=2", SPLIT)

    def failed(wire: Wire) -> tuple[float, list[str]]:
        job = make_job(wire, trial)

        def spoil(job: Job, event: Event) -> None:
            if isinstance(event, StepDone) and job.rank == 1:
                raise KeyError("only here")

        spoil.reads_parameters = False  # type: ignore[attr-defined]
        job.callbacks.append(spoil)
        if wire.rank == 0:
            job.fit(1)  # its end settles, which rank 1 does not come to
            return 0.0, []
        began = time.monotonic()
        with pytest.raises(KeyError, match="only here") as caught:
            job.fit(1)
        waited = time.monotonic() - began
        assert caught.value.__notes__ == [UNREADABLE]
        job.training.settle()
        return waited, caught.value.__notes__

    (_, (waited, _)) = run_threads(2, failed)
    assert 0.2 <= waited < 5.0
