"""A job: a plain model, its loss, optimizer and data, trained on all ranks.

    job = Job(model, loss, optimizer, data, steps=1000)
    job.fit()

Or in a loop of one's own, with four changed lines:

    job = Job(model, optimizer=optimizer)
    x, y = job.part((x, y))          this rank's rows
    job.backward(loss)               instead of loss.backward()
    job.update()                     instead of optimizer.step(); optimizer.zero_grad()

`Job` is thin: it owns the loop, the callbacks and the checkpoints. What happens in a
step is `placet.run.training`; which boxings there are is its program (`job.program`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from placet.job.checkpoint import Checkpoints, Saver
from placet.job.checkpoint import Saved as SavedState
from placet.job.data import Data
from placet.job.evaluation import Metrics, evaluate
from placet.job.events import (
    Evaluated,
    Event,
    Finished,
    Saved,
    Started,
    StepDone,
)
from placet.job.interrupt import requested
from placet.job.large import Deferred
from placet.job.loader import BatchPart, MicroBatch, Position, part_loader
from placet.job.mean import loss_and_count
from placet.job.own_loop import OwnLoop
from placet.job.plan_job import placed, rescuing, share_of
from placet.job.record import Recorder
from placet.job.session import current_plan, current_wire
from placet.job.setup import (
    MakesOptimizer,
    Settings,
    last_step,
    made_scheduler,
)
from placet.job.split import moved
from placet.job.state import Progress, job_state, load_job_state
from placet.placement.mesh import Mesh
from placet.planner.plan import Plan
from placet.program.program import Program
from placet.run.forward import global_forward
from placet.run.global_batch import Rows
from placet.run.planned_training import PlannedTraining
from placet.run.precision import Precision, autocast
from placet.run.training import Training, UpdateDone
from placet.settings import run_dir
from placet.wire.interface import Wire

Loss: TypeAlias = Callable[[nn.Module, Any], "Tensor | tuple[Tensor, float | Tensor]"]
Callback: TypeAlias = Callable[["Job", Event], None]


class Job(OwnLoop):
    """Trains a plain module on every rank of the job.

    >>> job = Job(model, loss, AdamW, Data(digits, batch_size=64), steps=100)
    >>> job.fit()

    Args:
        model: written for one device, built alike on every rank; or `Deferred`, one
            that is too large to be built whole.
        loss: `loss(model, batch)` -> the mean loss, or (mean loss, number of targets it
            is the mean of); without a number, the rows of the batch are counted.
        optimizer: made over `model.parameters()`, or a function params -> optimizer.
        data: `Data`, or a DataLoader to adopt. Its batch size is the global one.
        steps: how many steps `fit` trains in all.
        zero: 0: parameters on every rank. 1, 2: the optimizer's work and state split.
            3: parameters split as well.
        accumulate: micro-batches per step and rank.
        clip_norm: clip gradients to this global norm.
        precision: "bf16" and "fp16" run the loss under autocast.
        plan: where every tensor is, from `placet.plan`; or its file; or "auto".
        compile: have Inductor compile the plan's segments.
        scheduler: a torch scheduler, or a function optimizer -> scheduler; stepped once
            a step.
        validation, evaluate_every: what `evaluate` goes through, and when `fit` does so
            (None: once, at the end).
        metrics: `metrics(model, batch)` -> {name: mean, or (mean, count)}.
        callbacks: functions `callback(job, event)`.
        checkpoints: where and how often to save; when left out, the run's own folder,
            after `evaluate_every` steps, at the end and on Ctrl-C.
        seed: keys all randomness: dropout, data order, augmentation.
        local_batch_norm: BatchNorm by each rank's own rows, as DDP does.
        name: shown in reports.
        wire: carries the moves; the process's own when left out.

    Raises:
        ValueError: settings that contradict one another; says which and what to do.
        RanksDiffer: ranks were started with different parameters, code or settings.
        PlanError: the plan is for another model, batch or number of ranks.
    """

    def __init__(
        self,
        model: nn.Module | Deferred,
        loss: Loss | None = None,
        optimizer: Optimizer | MakesOptimizer | None = None,
        data: Data | DataLoader[Any] | None = None,
        *,
        steps: int | None = None,
        zero: Literal[0, 1, 2, 3] = 0,
        accumulate: int = 1,
        clip_norm: float | None = None,
        precision: Precision = "fp32",
        plan: Plan | str | Path | None = None,
        compile: bool = False,
        scheduler: LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
        validation: Data | DataLoader[Any] | None = None,
        evaluate_every: int | None = None,
        metrics: Metrics | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        seed: int = 0,
        local_batch_norm: bool = False,
        name: str = "job",
        wire: Wire | None = None,
    ) -> None:
        self.loss = loss
        self.steps = steps
        self.data = None if data is None else Data.of(data)
        self.validation = None if validation is None else Data.of(validation)
        self.evaluate_every = evaluate_every
        self.metrics = metrics
        self.callbacks = list(callbacks)
        self.name = name
        self.wire = current_wire() if wire is None else wire
        self.run_dir = run_dir()
        own = Checkpoints.of_run(self.run_dir, evaluate_every)
        self.checkpoints = own if checkpoints is None else checkpoints
        plan = current_plan() if plan is None else plan
        self.settings = Settings(
            zero=zero,
            accumulate=accumulate,
            clip_norm=clip_norm,
            precision=precision,
            seed=seed,
            local_batch_norm=local_batch_norm,
            batch_rows=self.data.batch_size if self.data else 0,
            evaluates=self.validation is not None,
            saves=self.checkpoints is not None,
        )
        self.training = placed(
            name,
            model,
            loss,
            optimizer,
            self.data,
            self.settings,
            plan,
            self.wire,
            compile=compile,
        )
        self.model = self.training.model
        if isinstance(self.training, Training):
            self.forward = global_forward(
                self.model, self.training, seed, local_batch_norm
            )
        self.optimizer = self.training.optimizer
        self.scheduler = made_scheduler(scheduler, self.optimizer)
        if self.run_dir is not None:
            recorder = Recorder(self.run_dir, self.rank)
            self.callbacks.insert(0, recorder)
            self.training.observe(recorder.observe)
        self.step_count = 0
        self.position = Position()
        self.status: Literal["done", "stopped", "failed"] = "done"
        self._saver: Saver | None = None
        self._micro = 0
        self._rows = None
        self._stop = self._just_evaluated = self._just_saved = False
        self._began = time.monotonic()

    @property
    def mesh(self) -> Mesh:
        """Where the job's tensors live."""
        return self.training.mesh

    @property
    def program(self) -> Program:
        """One training step as data: print it to see every boxing."""
        return self.training.program

    def fit(self, steps: int | None = None) -> None:
        """Train until `steps` steps have been taken in all, then evaluate.

        Ctrl-C ends the step, saves, and returns with `status` "stopped".

        Raises:
            ValueError: no loss, data, optimizer or number of steps is known.
            NonFiniteLoss: names the step and the parameter.
        """
        wanted = self.steps if steps is None else steps
        last = last_step(wanted, self.loss, self.data)
        began = time.monotonic()
        self.status = "failed"
        self.emit(Started(self.step_count + 1, last, str(self.program)))
        try:
            with rescuing(self.training):
                stopped = self._fitted(last)
            self.status = "stopped" if stopped else "done"
        finally:
            seconds = time.monotonic() - began
            control = self.wire.control_bytes()
            self.training.ledger.control_bytes["wire"] = control
            accounts = self.training.ledger.accounts()
            self.emit(Finished(self.status, self.step_count, seconds, accounts))

    def step(self, part: BatchPart) -> StepDone:
        """Take one training step on this rank's part of a global batch."""
        if self.loss is None:
            raise ValueError("Job.step needs a loss: Job(model, loss=...)")
        stop = requested()
        self.training.begin(self.step_count + 1)
        if isinstance(self.training, PlannedTraining):
            batch = moved(part.micro_batches[0].batch, self.training.device)
            done = self.training.step(batch, part.global_rows, stop=stop)
        elif self.training.needs_closure:
            done = self.training.update_by_closure(lambda: self._passes(part, stop))
        else:
            self._passes(part, stop)
            done = self.training.update()
        self.position = part.following
        return self._stepped(done)

    def evaluate(self) -> Mapping[str, float]:
        """Means of the loss and metrics over the validation set, on all ranks."""
        if self.validation is None:
            raise ValueError("Job.evaluate needs validation=Data(...)")
        validation = self.validation
        means = self.training.executor.run(
            "evaluate",
            "compute",
            lambda: evaluate(
                self.training,
                validation,
                loss=self.loss,
                metrics=self.metrics,
                precision=self.settings.precision,
            ),
        )
        self.emit(Evaluated(self.step_count, means))
        return means

    def save(self) -> None:
        """Write a checkpoint in the background; complete, or not there at all.

        Raises:
            ValueError: the job has no place for checkpoints.
        """
        if self.checkpoints is None:
            raise ValueError(
                "Job.save needs checkpoints=placet.Checkpoints(folder), or a run folder"
            )
        self.training.settle()
        if self._saver is None:
            self._saver = Saver(
                self.checkpoints, rank=self.rank, num_ranks=self.num_ranks
            )
        saver, progress = self._saver, Progress(self.step_count, self.position)
        saved = self.training.executor.run(
            "save",
            "save",
            lambda: saver.save(
                progress.step, job_state(self.training, self.scheduler, progress)
            ),
        )
        if saved is not None:
            self._saved(saved)

    def load(self, path: Path | str) -> None:
        """Go on from a checkpoint, written by any number of ranks and any ZeRO level.

        Args:
            path: a checkpoint, or the folder of them, of which the newest is taken.

        Raises:
            CheckpointError: none there, truncated, or of another model.
        """
        progress = load_job_state(self.training, self.scheduler, path)
        self.step_count, self.position = progress.step, progress.position

    def emit(self, event: Event) -> None:
        """Tell every callback; those of the user find all parameters up to date."""
        curious = any(getattr(c, "reads_parameters", True) for c in self.callbacks)
        if curious and isinstance(event, StepDone):
            self.training.settle()
        for callback in self.callbacks:
            callback(self, event)

    def _fitted(self, last: int) -> bool:
        """Train, evaluate and save; whether it was stopped."""
        stopped = self._loop(last)
        if self.validation is not None and not stopped and not self._just_evaluated:
            self.evaluate()
        if self.checkpoints is not None and (stopped or not self._just_saved):
            self.save()
        self._finish_save()
        self.training.settle()
        return stopped

    def _loop(self, last: int) -> bool:
        assert self.data is not None
        parts = part_loader(
            self.data,
            *share_of(self.training),
            self.settings.seed,
            self.settings.accumulate,
            self.position,
        )
        self._stop = self._just_evaluated = self._just_saved = False
        while self.step_count < last:
            part = self.training.executor.run("load", "load", lambda: next(parts))
            self.step(part)
            step = self.step_count
            every = self.evaluate_every
            self._just_evaluated = bool(every and step % every == 0)
            if self._just_evaluated and self.validation is not None:
                self.evaluate()
            saves = self.checkpoints
            self._just_saved = saves is not None and saves.is_due(step)
            if self._just_saved:
                self.save()
            if self._stop:
                return True
        return False

    def _passes(self, part: BatchPart, stop: bool) -> None:
        """Forward and backward of every micro-batch."""
        for index, micro in enumerate(part.micro_batches):
            loss, count = self._losses(micro, part.global_rows)
            is_last = index == len(part.micro_batches) - 1
            self.forward.backward(loss, count, is_last=is_last, stop=stop and is_last)

    def _losses(self, micro: MicroBatch, global_rows: int) -> tuple[Tensor, float]:
        assert self.loss is not None
        rows = Rows(
            micro.first_row,
            max(micro.num_rows, 1),
            global_rows,
            weight=0.0 if micro.is_dummy else 1.0,
        )
        self.forward.prepare(self.training.executor.step, rows)
        with self.forward.active(), autocast(self.settings.precision):
            result = self.loss(self.model, moved(micro.batch, self.training.device))
        loss, count = loss_and_count(result, micro.num_rows)
        return loss, 0.0 if micro.is_dummy else count

    def _stepped(self, done: UpdateDone) -> StepDone:
        learning_rate = float(self.optimizer.param_groups[0]["lr"])
        if self.scheduler is not None and not done.skipped:
            self.scheduler.step()
        self.step_count += 1
        self._stop = done.stop
        sent, received = self.training.ledger.end_step()
        now = time.monotonic()
        event = StepDone(
            self.step_count,
            done.loss,
            done.num_targets,
            learning_rate,
            done.grad_norm,
            now - self._began,
            sent,
            received,
            done.skipped,
        )
        self._began = now
        self.emit(event)
        return event

    def _finish_save(self) -> None:
        if self._saver is not None:
            saver, self._saver = self._saver, None
            saved = saver.close()
            if saved is not None:
                self._saved(saved)

    def _saved(self, saved: SavedState) -> None:
        """A checkpoint is complete: account for its messages, and its files' share."""
        ledger = self.training.ledger
        ledger.foreign_bytes["checkpoints"] += saved.message_bytes
        ledger.file_bytes += saved.num_bytes // self.num_ranks
        self.emit(Saved(saved.step, str(saved.path), saved.seconds))
