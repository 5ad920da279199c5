"""`placet` as a user starts it: real processes that are ended for certain.

Every process that a test starts, however deep, carries a mark in its environment; by
that mark the test finds those that were left behind.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).with_name("small_jobs.py")
ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 170.0
END_SECONDS = 5.0
_MARK = "END_TO_END_MARK"


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Command:
    """A running command; `mark` is in the environment of all its processes."""

    process: subprocess.Popen[str]
    mark: str = field(repr=False)

    def wait(self) -> Ended:
        """Wait for it; the time limit of `started` holds."""
        out, err = self.process.communicate()
        return Ended(self.process.returncode, out, err)

    def interrupt(self) -> None:
        """Ctrl-C, as the terminal gives it to the launcher."""
        self.process.send_signal(signal.SIGINT)


@contextmanager
def started(
    arguments: Sequence[str], folder: Path, **environment: str
) -> Iterator[Command]:
    """Run `python ARGUMENTS` in a folder; every process of it is killed at the end."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {_MARK: mark, "OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the test's own Ctrl-C does not reach it
    )
    watch = threading.Timer(LIMIT_SECONDS, _kill, [mark])
    watch.start()
    try:
        yield Command(process, mark)
    finally:
        watch.cancel()
        _kill(mark)
        process.communicate()


def run(arguments: Sequence[str], folder: Path, **environment: str) -> Ended:
    """Run `python ARGUMENTS` to its end; nothing may run on after it."""
    with started(arguments, folder, **environment) as command:
        ended = command.wait()
        assert_no_orphans(command.mark)
    return ended


def train(recipe: str, *options: object) -> list[str]:
    """Arguments for `placet train`; a recipe of small_jobs.py by its name alone.

    Options are `--name`, values, and `name=value`, which stands for `--set name=value`.
    """
    target = recipe if recipe in ("char_gpt", "digits") else f"{RECIPES}:{recipe}"
    words: list[str] = []
    for option in map(str, options):
        words += ["--set", option] if "=" in option and option[0] != "-" else [option]
    return ["-m", "placet", "train", target, *words]


def events(run_folder: Path, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    """The events of a kind that a rank has written so far."""
    path = run_folder / f"events-rank{rank}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # the last one may be half written
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def losses(run_folder: Path) -> dict[int, float]:
    """The loss of each step in a run's record."""
    return {e["step"]: e["loss"] for e in events(run_folder, "step")}


def poll(found: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
    """What `found` gives, as soon as that is something."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := found()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} s"
        pause.wait(0.02)
    return value


def worker_pids(run_folder: Path, num_ranks: int) -> list[int]:
    """The process ids that workers have written down, by rank."""
    paths = [run_folder / f"pid-{rank}" for rank in range(num_ranks)]
    poll(lambda: all(path.exists() for path in paths), f"{num_ranks} workers")
    return [int(path.read_text()) for path in paths]


def assert_gone(pids: Sequence[int], seconds: float) -> None:
    """All of these processes end within the time, if they have not yet."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            left = max(0.0, deadline - time.monotonic())
            ended, _, _ = select.select([handle], [], [], left)
            assert ended, f"process {pid} still runs after {seconds:.1f} s"
        finally:
            os.close(handle)


def assert_no_orphans(mark: str) -> None:
    """No process of a command runs on after it, but for the moment it takes to end."""
    assert_gone(_marked(mark), patience(END_SECONDS))


def patience(seconds: float) -> float:
    """A time limit, longer where other programs keep this machine's cores busy."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _marked(mark: str) -> list[int]:
    sought = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended, or is another user's
            if sought in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def _kill(mark: str) -> None:
    for pid in _marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended since
