"""What runs in a worker that `placet.job.launch` started: the target, and its failure.

A failing rank writes down when and why it failed and then lingers for a moment with
its connections open: so its peers do not fail in turn before the launcher ends them. It
lingers longer where its failure is one that another rank's death causes, so that a rank
that was killed outright is seen to have ended first, also on a busy machine.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from placet.errors import CaptureError, CheckpointError, PlanError, WireError
from placet.job.interrupt import install
from placet.job.process import die_with_parent, log_output_to

LINGER_SECONDS = 0.5
LINGER_AFTER_PEERS_SECONDS = 2.5
_OWN_FRAMES = ("worker.py", "train.py")

SAYS_ALL = (PlanError, CaptureError)
"""Errors about what was given, not about where in the code: shown without traceback."""


@dataclass(frozen=True)
class Place:
    """What the launcher tells each of its workers.

    Args:
        failures: folder where a rank leaves its process id and, failing, its account.
        logs: folder for the output of ranks other than 0; None keeps all on screen.
        threads: torch's threads in each worker.
        environment: variables to set before the target runs.
    """

    failures: str
    logs: str | None
    threads: int
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Failure:
    """One rank's account of how it ended.

    Args:
        traceback: or the message alone, where that says all: see `SAYS_ALL`.
    """

    rank: int
    time_unix: float
    summary: str
    traceback: str
    says_all: bool = False


def run_rank(target: Callable[..., Any], args: tuple[Any, ...], place: Place) -> Any:
    """Run `target(*args)` as one rank; a failure is written down and ends the process.

    Elastic's launcher has set RANK, WORLD_SIZE and so on already.
    """
    die_with_parent()
    os.setsid()  # Ctrl-C in the terminal goes to the launcher alone, which passes it on
    install(announce=False)
    os.environ.update(place.environment)
    os.environ["OMP_NUM_THREADS"] = str(place.threads)
    torch.set_num_threads(place.threads)
    rank = int(os.environ["RANK"])
    (Path(place.failures) / f"pid-{os.getpid()}").touch()
    if rank > 0 and place.logs is not None:
        log_output_to(str(Path(place.logs) / f"rank{rank}.log"))
    try:
        return target(*args)
    except Exception as error:
        write_failure(place.failures, rank, error)
        by_peers = isinstance(error, WireError | CheckpointError)
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(LINGER_AFTER_PEERS_SECONDS if by_peers else LINGER_SECONDS)
    os._exit(1)  # no clean-up that could wait for peers which wait for this rank


def write_failure(folder: str, rank: int, error: Exception) -> None:
    """Write a rank's account of `error`, complete or not at all."""
    failure = Failure(
        rank=rank,
        time_unix=time.time(),
        summary=f"{type(error).__name__}: {error}",
        traceback=account_of(error),
        says_all=isinstance(error, SAYS_ALL),
    )
    path = Path(folder) / f"failure-{rank}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(failure)))
    partial.replace(path)


def account_of(error: Exception) -> str:
    """An error for people: with a traceback, if that helps."""
    if isinstance(error, SAYS_ALL):
        return str(error)
    trace = without_own_frames(error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, trace))


def read_pids(folder: str) -> list[int]:
    """Process ids of the workers that have started."""
    names = [path.name for path in Path(folder).glob("pid-*")]
    return [int(name.removeprefix("pid-")) for name in names]


def read_failures(folder: str) -> list[Failure]:
    """The accounts in a folder, the earliest first."""
    found = [
        Failure(**json.loads(path.read_text()))
        for path in Path(folder).glob("failure-*.json")
    ]
    return sorted(found, key=lambda failure: failure.time_unix)


def without_own_frames(trace: Any) -> Any:
    """A traceback from the first frame that is the recipe's or the job's own."""
    first = trace
    while first is not None:
        path = Path(first.tb_frame.f_code.co_filename)
        if path.parent != Path(__file__).parent or path.name not in _OWN_FRAMES:
            return first
        first = first.tb_next
    return trace
