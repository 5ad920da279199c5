"""What a job tells its callbacks: one small frozen value per thing that happened.

A callback is any function `callback(job, event)`. The console, the run's event file and
the user's own code are all callbacks; each rank calls its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Started:
    """The job is about to take its first step."""

    first_step: int
    last_step: int
    plan: str


@dataclass(frozen=True)
class StepDone:
    """One training step has ended on this rank.

    Args:
        step: counted from 1.
        loss: the mean over the global batch.
        num_targets: how many targets that mean is over (tokens, rows).
        learning_rate: of the first parameter group.
        grad_norm: the global norm before clipping, or None where it was not needed.
        seconds: since the last step ended.
        sent_bytes, received_bytes: by this rank's boxings.
        skipped: the update was left out (fp16 overflow).
    """

    step: int
    loss: float
    num_targets: float
    learning_rate: float
    grad_norm: float | None
    seconds: float
    sent_bytes: int
    received_bytes: int
    skipped: bool = False


@dataclass(frozen=True)
class Evaluated:
    """The validation set has been gone through."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete on disk."""

    step: int
    path: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """Something to show at the end: a small table and a text.

    Emitted by callbacks, through `job.emit`.
    """

    title: str
    rows: tuple[tuple[str, float], ...]
    text: str = ""


@dataclass(frozen=True)
class Finished:
    """No further step will be taken; `job.emit(Result(...))` is still possible."""

    status: Literal["done", "stopped", "failed"]
    step: int
    seconds: float
    ledger: Mapping[str, int] = field(default_factory=dict)


Event: TypeAlias = Started | StepDone | Evaluated | Saved | Result | Finished
