"""Rank 0's terminal: the plan, a progress bar, evaluations, results.

`Terminal` is a callback of the job. Where stdout is no terminal it writes plain lines,
one every few seconds.
"""

import time
from types import TracebackType

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from placet.job.events import (
    Evaluated,
    Event,
    Finished,
    Result,
    Saved,
    Started,
    StepDone,
)
from placet.job.plan_table import placements_table, plan_notes, plan_title
from placet.job.view import JobView
from placet.program.program import bytes_text

LINE_SECONDS = 5.0
REFRESH_SECONDS = 0.2
SMOOTHING = 0.9


class Terminal:
    """Shows a job's events; use it as a context manager, which closes the bar.

    Args:
        is_shown: False shows nothing (ranks other than 0).
        console: where to write; a console on stdout when None.
    """

    reads_parameters = False

    def __init__(
        self, *, is_shown: bool = True, console: Console | None = None
    ) -> None:
        self.is_shown = is_shown
        self.console = console or Console(highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._last_step = 0
        self._first_step = 1
        self._loss = 0.0
        self._seconds = 0.0
        self._shown_at = time.monotonic()
        self._is_held_up = False

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_bar()

    def __call__(self, job: JobView, event: Event) -> None:
        """Show one event."""
        if not self.is_shown:
            return
        match event:
            case Started():
                self._start(job, event)
            case StepDone():
                self._step(job, event)
            case Evaluated():
                self._is_held_up = True
                self._say(f"step {event.step:,}  {metrics_text(event)}")
            case Saved():
                self._is_held_up = True
                self._say(f"step {event.step:,}  saved {event.path}")
            case Result():
                self._result(event)
            case Finished():
                self._close_bar()
                self._say(finished_text(event))

    def _start(self, job: JobView, event: Started) -> None:
        self._first_step, self._last_step = event.first_step, event.last_step
        self._say(plan_title(job))
        self.console.print(placements_table(job.program, job.rank))
        for note in plan_notes(job):
            self._say(note)
        if event.first_step > 1:
            self._say(going_on_text(event))
        self.console.print()
        self._shown_at = time.monotonic()
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.completed:,}/{task.total:,}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[now]}"),
                console=self.console,
                auto_refresh=False,  # a thread would take time from the training
                expand=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=event.last_step, completed=event.first_step - 1, now=""
            )
            self._bar.refresh()

    def _step(self, job: JobView, event: StepDone) -> None:
        is_first = event.step <= self._first_step + 1  # the very first also warms up
        keep = 0.0 if is_first else SMOOTHING
        self._loss = keep * self._loss + (1 - keep) * event.loss
        if is_first or not self._is_held_up:  # that step's time holds an evaluation
            self._seconds = keep * self._seconds + (1 - keep) * event.seconds
        self._is_held_up = False
        now = time.monotonic()
        is_last = event.step == self._last_step
        if self._bar is not None:
            text = self._now_text(job, event)
            self._bar.update(self._task, completed=event.step, now=text)
            if now - self._shown_at >= REFRESH_SECONDS or is_last:
                self._shown_at = now
                self._bar.refresh()
        elif now - self._shown_at >= LINE_SECONDS or is_last:
            self._shown_at = now
            text = self._now_text(job, event)
            self._say(f"step {event.step:,}/{self._last_step:,}  {text}")

    def _now_text(self, job: JobView, event: StepDone) -> str:
        per_second = event.num_targets / max(self._seconds, 1e-9)
        unit = "rows" if event.num_targets <= job.settings.batch_rows else "tokens"
        left = (self._last_step - event.step) * self._seconds
        parts = [
            f"loss {self._loss:.3f}",
            f"{short_count(per_second)} {unit}/s",
            f"{bytes_text(event.sent_bytes)} sent/step",
            f"ETA {clock(left)}",
        ]
        return "  ".join(parts)

    def _result(self, event: Result) -> None:
        table = Table(title=event.title, title_justify="left", title_style="bold")
        table.add_column("")
        table.add_column("", justify="right")
        for index, (name, value) in enumerate(event.rows):
            table.add_row(name, f"{value:.3f}", style="bold green" if not index else "")
        table.show_header = False
        self.console.print()
        self.console.print(table)
        if event.text:
            sample = Panel(Text(event.text), title="sample", title_align="left")
            self.console.print(sample)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.refresh()
            self._bar.stop()
            self._bar = None


def going_on_text(event: Started) -> str:
    """Where a resumed training stands, and what to do if it is already at its end."""
    text = f"going on from step {event.first_step - 1:,}"
    if event.first_step > event.last_step:
        text += ", the last one; to train on, ask for more steps"
    return text


def metrics_text(event: Evaluated) -> str:
    """An evaluation's numbers: `validation loss 1.234  accuracy 0.971`."""
    numbers = (f"{name} {value:.4g}" for name, value in event.metrics.items())
    return "validation " + "  ".join(numbers)


def finished_text(event: Finished) -> str:
    """How the training ended, how long it took, which bytes it moved and wrote."""
    how = {"done": "done", "stopped": "stopped, as asked", "failed": "failed"}
    accounts = ", ".join(
        f"{name} {bytes_text(count)}"
        for name, count in event.ledger.items()
        if name != "files"
    )
    ended = f"{how[event.status]} after step {event.step:,}, {clock(event.seconds)}"
    if accounts:
        ended += f"\nmoved by rank 0: {accounts}"
    if event.ledger.get("files"):
        ended += f"\nwritten to files: {bytes_text(event.ledger['files'])}"
    return ended


def short_count(number: float) -> str:
    """A count in at most four digits: 950, 41.2k, 1.3M."""
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.0f}" if not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}G"


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are some: 2:05, 1:00:09."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
