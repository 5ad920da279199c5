"""Recipes of the end-to-end tests: a small model in float64, and ways to go wrong.

Each is run as `placet train tests/job/small_jobs.py:NAME`. Rows, order, dropout and
learning rate all depend on where in the training a step is, so a loss curve says
whether a run went on from just where another one ended.
"""

import os
import signal
import sys
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR

from placet.job.checkpoint import Checkpoints
from placet.job.data import Data
from placet.job.events import StepDone
from placet.job.job import Job
from placet.settings import run_dir
from placet.wire.connect import connect

ROWS = 47
BATCH_ROWS = 8
ENDLESS = 10**9


class Network(nn.Module):
    """Two layers, `body` and `head`, with dropout between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Linear(7, width)
        self.head = nn.Linear(width, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(torch.tanh(self.body(x))))
        return out


def rows() -> torch.utils.data.TensorDataset:
    """47 rows: five batches of 8 and one of 7, so parts are uneven and one is short."""
    made = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 7, generator=made, dtype=torch.float64)
    y = torch.randint(0, 3, (ROWS,), generator=made)
    return torch.utils.data.TensorDataset(x, y)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy."""
    x, y = batch
    return F.cross_entropy(model(x), y)


def make(
    steps: int,
    *,
    width: int = 12,
    lr: float = 0.02,
    seed: int = 0,
    save_every: int | None = None,
    **options: Any,
) -> Job:
    """The job that all recipes vary."""
    torch.manual_seed(seed)
    model = Network(width).double()
    folder = run_dir()
    kept = None if folder is None else Checkpoints(folder / "checkpoints", save_every)
    return Job(
        model,
        options.pop("loss", loss),
        AdamW(model.parameters(), lr=lr),
        Data(rows(), BATCH_ROWS),
        steps=steps,
        scheduler=lambda optimizer: StepLR(optimizer, 3, 0.9),
        checkpoints=kept,
        name="small",
        **options,
    )


def rank() -> int:
    """This worker's rank, before there is a job."""
    return int(os.environ.get("RANK", "0"))


def write_pid() -> None:
    """Tell the test this worker's process id, in the run's folder."""
    folder = run_dir()
    assert folder is not None
    partial = folder / f"pid-{rank()}.partial"
    partial.write_text(str(os.getpid()))
    partial.replace(folder / f"pid-{rank()}")


def curve(
    *,
    steps: int = 16,
    zero: Literal[0, 1, 2, 3] = 0,
    save_every: int | None = None,
    kill_rank: int = -1,
    kill_at_save: int = 0,
) -> Job:
    """Trains; one rank may kill itself (SIGKILL) in the middle of a save."""
    if rank() == kill_rank:
        _kill_in_save(kill_at_save)
    return make(steps, zero=zero, save_every=save_every, clip_norm=1.0)


def _kill_in_save(at_step: int) -> None:
    """Die when this rank opens its file of that step's checkpoint."""
    sought = f"step-{at_step:08d}.partial"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and sought in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def wide(*, steps: int = 12, width: int = 520, zero: Literal[0, 1, 2, 3] = 0) -> Job:
    """Moves more than 1 MiB a step, in float32, and saves twice."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width))
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    folder = run_dir()
    assert folder is not None
    return Job(
        model,
        lambda model, x: model(x).square().mean(),
        AdamW(model.parameters(), lr=1e-3),
        Data(rows, 16),
        steps=steps,
        zero=zero,
        checkpoints=Checkpoints(folder / "checkpoints", max(1, steps // 2)),
        name="wide",
    )


def endless(*, save_every: int | None = None, timeout_seconds: float = 60.0) -> Job:
    """Trains until it is stopped."""
    write_pid()
    wire = connect(timeout_seconds=timeout_seconds) if "RANK" in os.environ else None
    return make(ENDLESS, save_every=save_every, wire=wire)


def raising(*, on_rank: int = 1, at_step: int = 0) -> Job:
    """One rank raises: while the recipe runs (at_step=0), or after a step."""
    write_pid()

    def fail(job: Job, event: object) -> None:
        if isinstance(event, StepDone) and event.step == at_step:
            fail_on_purpose(job.rank == on_rank)

    fail_on_purpose(at_step == 0 and rank() == on_rank)
    return make(ENDLESS, callbacks=[fail])


def fail_on_purpose(fails: bool) -> None:
    """Raise what a recipe might."""
    if fails:
        raise KeyError("no such column: price")


def not_a_number(
    *, at_step: int = 5, save_every: int = 2, zero: Literal[0, 1, 2, 3] = 0
) -> Job:
    """From a step on, the gradient of head.bias is not a number on the last rank."""
    num_calls = 0

    def spoiled(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        x, y = batch
        out = model(x)
        if num_calls >= at_step and rank() == 1:
            out = out + float("nan") * model.get_parameter("head.bias")
        return F.cross_entropy(out, y)

    return make(20, loss=spoiled, save_every=save_every, zero=zero)


def different(*, what: Literal["values", "names", "optimizer", "settings"]) -> Job:
    """Rank 1 is started with something else than rank 0."""
    odd = rank() == 1
    return make(
        4,
        seed=int(odd and what == "values"),
        width=13 if odd and what == "names" else 12,
        lr=0.03 if odd and what == "optimizer" else 0.02,
        clip_norm=2.0 if odd and what == "settings" else 1.0,
    )
