"""One training run as data, and what came out of it on each rank.

    alone = train_on(1, trial)[0]
    for one in train_on(4, replace(trial, zero=3)):
        assert_same_run(one, alone)

A run also checks the ledger: each byte as predicted, and a step's bytes as the program
says.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.events import Event, StepDone
from placet.job.job import Job
from placet.job.loader import part_loader
from placet.program.program import Program
from placet.wire.interface import Wire
from testing.one_device import assert_same_as_one_device
from testing.ranks import run_threads
from tests.job.models import made_data, masked_loss, mean_loss

STEPS = 20


@dataclass(frozen=True)
class Trial:
    """A job's arguments.

    Args:
        model: makes the model; called under one seed.
        optimizer: (model) -> optimizer.
        masked: most targets are masked; some ranks have none at all.
        rows: of a global batch; the data's 50 rows leave an uneven last one.
        options: further arguments of Job.
        at_step: (model, step) -> None, called after each step.
        bytes_vary: the run moves more than the program of a step says.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    zero: int = 0
    masked: bool = False
    rows: int = 16
    steps: int = STEPS
    options: Mapping[str, Any] = field(default_factory=dict)
    at_step: Callable[[nn.Module, int], None] | None = None
    loss: Callable[..., Any] | None = None
    bytes_vary: bool = False

    def made_model(self) -> nn.Module:
        """The model, equal every time."""
        # Ranks that are threads share torch's generator, so it is not used here.
        model = self.model().double()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(
                    parameter.shape, generator=generator, dtype=torch.float64
                )
                parameter.copy_(0.3 * noise + (1.0 if parameter.dim() < 2 else 0.0))
        return model

    def made_data(self) -> Data:
        """The data, equal every time."""
        x, y, masked = made_data()
        return Data(TensorDataset(x, masked if self.masked else y), self.rows)

    def made_loss(self) -> Callable[..., Any]:
        """The loss."""
        return self.loss or (masked_loss if self.masked else mean_loss)


@dataclass
class Run:
    """What a rank saw."""

    losses: list[float] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    moved: list[tuple[int, int]] = field(default_factory=list)
    planned: list[tuple[int, int]] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)
    program: str = ""


def train(wire: Wire, trial: Trial) -> Run:
    """Train on one rank, and look closely at the ledger."""
    model = trial.made_model()
    job = Job(
        model,
        trial.made_loss(),
        trial.optimizer(model),
        trial.made_data(),
        steps=trial.steps,
        zero=trial.zero,  # type: ignore[arg-type]
        wire=wire,
        **trial.options,
    )
    run = Run()
    job.callbacks.append(watcher(run, trial))
    job.fit()
    run.program = str(job.program)
    assert not job.training.ledger.mismatched
    if not trial.bytes_vary:
        ledger = job.training.ledger
        moved = (ledger.sent_bytes, ledger.received_bytes)
        assert moved == tuple(map(sum, zip(*run.planned, strict=True)))
        if trial.zero in (0, 3):  # others bring parts back within the next step
            assert run.moved == run.planned
    run.state = whole_state(job)
    return run


def watcher(run: Run, trial: Trial) -> Callable[[Job, Event], None]:
    """A callback that writes each step down."""
    known: dict[int, tuple[Program, tuple[int, int]]] = {}

    def watch(job: Job, event: Event) -> None:
        if not isinstance(event, StepDone):
            return
        run.losses.append(event.loss)
        run.norms.append(event.grad_norm)
        run.rates.append(event.learning_rate)
        run.targets.append(event.num_targets)
        run.skipped.append(event.skipped)
        run.moved.append((event.sent_bytes, event.received_bytes))
        program = job.program
        if id(program) not in known:
            size = program.sent_bytes(job.rank), program.received_bytes(job.rank)
            known[id(program)] = program, size
        run.planned.append(known[id(program)][1])
        if trial.at_step is not None:
            trial.at_step(job.model, event.step)

    return watch


def whole_state(job: Job) -> dict[str, Tensor]:
    """Parameters and buffers, whole, also where only parts are stored."""
    for stored in job.training.stored.values():
        stored.make_whole(job.training.executor, "forward")
    state = {**dict(job.model.named_parameters()), **dict(job.model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def train_plainly(trial: Trial) -> Run:
    """The same run by torch alone: no job, no program, no keyed randomness."""
    model, run = trial.made_model(), Run()
    optimizer, loss = trial.optimizer(model), trial.made_loss()
    make = trial.options.get("scheduler")
    scheduler = make(optimizer) if make else None
    parts = part_loader(trial.made_data(), 0, 1, trial.options.get("seed", 0))
    for step in range(1, trial.steps + 1):
        (micro,) = next(parts).micro_batches
        found = loss(model, micro.batch)
        value = found[0] if isinstance(found, tuple) else found
        value.backward()
        clip = trial.options.get("clip_norm")
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            run.norms.append(float(norm))
        run.losses.append(float(value.detach()))
        run.rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        if trial.at_step is not None:
            trial.at_step(model, step)
    state: Iterable[tuple[str, Tensor]] = (
        *model.named_parameters(),
        *model.named_buffers(),
    )
    run.state = {name: tensor.detach().clone() for name, tensor in state}
    return run


def train_on(num_ranks: int, trial: Trial, timeout: float = 90.0) -> list[Run]:
    """The runs of all ranks, which are threads."""
    return run_threads(num_ranks, train, trial, timeout=timeout)


def assert_same_run(run: Run, alone: Run, *, tolerance: float = 1e-6) -> None:
    """Losses, norms and state agree with the run on one rank."""
    for name in ("losses", "norms", "rates", "targets", "skipped", "state"):
        expected = getattr(alone, name)
        if expected and (name == "state" or expected[0] is not None):
            assert_same_as_one_device(
                {name: as_tensors(getattr(run, name))},
                {name: as_tensors(expected)},
                tolerance=tolerance,
            )


def as_tensors(values: Any) -> Any:
    """Numbers in float64, to be compared as such."""
    if isinstance(values, dict):
        return values
    return torch.tensor(values, dtype=torch.float64)


def as_zero(trial: Trial, zero: int, **options: Any) -> Trial:
    """The trial at another level, with further options."""
    return replace(trial, zero=zero, options={**trial.options, **options})
