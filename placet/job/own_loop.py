"""A job in a loop of one's own: part, backward and update, in place of torch's calls.

x, y = job.part((x, y))          this rank's rows
job.backward(loss)               instead of loss.backward()
job.update()                     instead of optimizer.step(); optimizer.zero_grad()
"""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from placet.job.events import StepDone
from placet.job.interrupt import requested
from placet.job.setup import Settings
from placet.job.split import part_of
from placet.run.forward import Forward
from placet.run.global_batch import Rows
from placet.run.planned_training import PlannedTraining
from placet.run.training import Training, UpdateDone
from placet.wire.interface import Wire


class OwnLoop:
    """The part of `placet.job.job.Job` that serves loops of one's own."""

    training: Training | PlannedTraining
    forward: Forward
    settings: Settings
    optimizer: Optimizer
    wire: Wire
    step_count: int
    _micro: int
    _rows: Rows | None

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.wire.rank

    @property
    def num_ranks(self) -> int:
        """How many ranks train together."""
        return self.wire.num_ranks

    def part(self, batch: Any) -> Any:
        """This rank's rows of a global batch, for a loop of one's own.

        Args:
            batch: tensors of equal first dim, in any nesting of tuples and dicts; the
                same on every rank.

        Returns:
            The same structure with this rank's rows. A rank without rows gets row 0,
            which counts for nothing.
        """
        training = self._unplanned()
        if self._micro == 0:
            training.begin(self.step_count + 1)
        local, self._rows = part_of(batch, self.rank, self.num_ranks, self._micro)
        self.forward.prepare(training.executor.step, self._rows)
        return local

    def backward(self, loss: Tensor, num_targets: float | None = None) -> None:
        """Compute gradients of a loss over `part`'s rows, in a loop of one's own.

        Args:
            loss: the mean over this rank's targets, 0-d.
            num_targets: how many; the rows of the part when left out.
        """
        if self._rows is None:
            raise ValueError(
                "job.backward without job.part: call batch = job.part(batch) before "
                "each job.backward, so that each rank has its own rows"
            )
        self._micro += 1
        count = self._rows.num_rows if num_targets is None else float(num_targets)
        if self._rows.is_dummy:
            count = 0
        is_last = self._micro == self.settings.accumulate
        self.forward.backward(loss, count, is_last=is_last, stop=requested())
        self._rows = None

    def update(self) -> StepDone:
        """Update the parameters, in a loop of one's own; gradients are none after it.

        Raises:
            ValueError: not `accumulate` calls of `backward` since the last update; an
                optimizer that evaluates the loss itself.
        """
        training = self._unplanned()
        if training.needs_closure:
            raise ValueError(
                f"{type(self.optimizer).__name__} evaluates the loss itself, several "
                "times a step: give Job the loss and data, and call job.fit()"
            )
        if self._micro != self.settings.accumulate:
            raise ValueError(
                f"job.update after {self._micro} job.backward calls, but the job has "
                f"accumulate={self.settings.accumulate}"
            )
        self._micro = 0
        done = self._stepped(training.update())
        training.settle()
        return done

    def _unplanned(self) -> Training:
        """The training, which has no plan.

        Raises:
            ValueError: it has one.
        """
        if isinstance(self.training, PlannedTraining):
            raise ValueError(
                "a job with a plan trains by job.fit(): forward and backward are in "
                "its program, so a loop of one's own cannot run them; leave plan= out"
            )
        return self.training

    def _stepped(self, done: UpdateDone) -> StepDone:
        raise NotImplementedError
