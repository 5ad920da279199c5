"""The run's record: what happened, as JSON lines, one file a rank.

The report and the timeline are made from it; it is also the place to look when a job
has died. A line is written whole and flushed, so a torn file loses its last line only.
"""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch

from placet.job.events import (
    Evaluated,
    Event,
    Finished,
    Result,
    Saved,
    Started,
    StepDone,
)
from placet.job.plan_record import plan_event
from placet.job.view import JobView
from placet.program.program import Program
from placet.run.events import NodeFired

TIMELINE_STEPS = 4
"""Nodes of this many steps are written, after a first one that is never typical."""


class Recorder:
    """A callback and an observer that write events to `events-rank<r>.jsonl`.

    Args:
        folder: of the run; made if it is not there.
        rank: this rank.
    """

    reads_parameters = False

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self.file: TextIO = (folder / f"events-rank{rank}.jsonl").open("a")
        self.began = time.monotonic()
        self.first_step = 0

    def __call__(self, job: JobView, event: Event) -> None:
        """Write an event of the job."""
        if isinstance(event, Started):
            self.began = time.monotonic()
            self.first_step = event.first_step
            self.write("start", **_start(job, event))
        elif isinstance(event, StepDone):
            self.write("step", **_step(event))
        elif isinstance(event, Evaluated):
            self.write("evaluate", step=event.step, metrics=dict(event.metrics))
        elif isinstance(event, Saved):
            self.write("save", step=event.step, path=event.path, seconds=event.seconds)
        elif isinstance(event, Result):
            self.write("result", title=event.title, rows=event.rows, text=event.text)
        else:
            self.write("end", **_end(event))

    def observe(self, fired: NodeFired) -> None:
        """Write a node of the executor's, in the steps of the timeline."""
        if not 1 <= fired.step - self.first_step <= TIMELINE_STEPS:
            return
        start = fired.start_seconds - self.began
        end = fired.end_seconds - self.began
        self.write(
            "node",
            step=fired.step,
            name=fired.name,
            lane=fired.lane,
            start=start,
            end=end,
        )
        if fired.lane == "move":
            self.write(
                "boxing",
                step=fired.step,
                name=fired.name,
                start=start,
                end=end,
                waited=fired.waited_seconds,
                sent_bytes=fired.sent_bytes,
                received_bytes=fired.received_bytes,
                predicted_sent_bytes=fired.predicted_sent_bytes,
                predicted_received_bytes=fired.predicted_received_bytes,
            )

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line.

        Raises:
            OSError: it could not be written, as on a full disk; names the file.
        """
        line = {"kind": kind, "t": time.monotonic() - self.began, **fields}
        try:
            self.file.write(json.dumps(_finite(line)) + "\n")
            self.file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.file.name) from error


def _finite(value: Any) -> Any:
    """JSON has no NaN: numbers that are not finite become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def _start(job: JobView, event: Started) -> dict[str, Any]:
    return {
        "time_unix": time.time(),
        "name": job.name,
        "rank": job.rank,
        "num_ranks": job.num_ranks,
        "first_step": event.first_step,
        "last_step": event.last_step,
        "mesh": repr(job.mesh),
        "plan": event.plan,
        "division": plan_event(job.training) if job.rank == 0 else None,
        "argv": sys.argv,
        "environment": environment(),
        "model": {
            "name": type(job.model).__name__,
            "parameters": job.program.num_parameters,
        },
        "boxings": [boxing_row(job.program, name, job.rank) for name in _names(job)],
    }


def _names(job: JobView) -> list[str]:
    return [b.name for b in job.program.boxings()]


def boxing_row(program: Program, name: str, rank: int) -> dict[str, Any]:
    """What is known of a boxing before it runs."""
    boxing = next(b for b in program.boxings() if b.name == name)
    plan = program.boxing_plan(boxing)
    rows = zip(
        program.mesh.axes, boxing.src.placements, boxing.dst.placements, strict=True
    )
    axis, src, dst = next((a, p, q) for a, p, q in rows if p != q)
    return {
        "name": name,
        "src": repr(src),
        "dst": repr(dst),
        "axis": axis,
        "tensors": len(boxing.inputs),
        "payload_bytes": plan.payload_bytes(),
        "sent_bytes": plan.sent_bytes(rank),
        "received_bytes": plan.received_bytes(rank),
        "bound_bytes": plan.bound_bytes() / program.mesh.num_ranks,
    }


def _step(event: StepDone) -> dict[str, Any]:
    return {
        "step": event.step,
        "seconds": event.seconds,
        "loss": event.loss,
        "lr": event.learning_rate,
        "targets": event.num_targets,
        "grad_norm": event.grad_norm,
        "sent_bytes": event.sent_bytes,
        "received_bytes": event.received_bytes,
        "skipped": event.skipped,
    }


def _end(event: Finished) -> dict[str, Any]:
    return {
        "status": event.status,
        "step": event.step,
        "seconds": event.seconds,
        "ledger": dict(event.ledger),
    }


def environment() -> dict[str, Any]:
    """The machine and versions, without names that say who or where."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
    }
