"""Real processes for tests: started fast, killed for certain.

They fork from one server process that has loaded torch already, so a rank starts in
milliseconds and not in seconds. When the test process dies, so does the server, and
the kernel then kills every rank (PR_SET_PDEATHSIG).
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from testing.failures import Failure, RankDied, describe_error

GRACE_SECONDS = 3.0
_PRELOAD = ["torch", "torch.distributed", "placet.wire.connect", "pytest", "hypothesis"]
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a rank: a result, or a failure."""

    result: Any = None
    failure: Failure | None = None


def start_rank(rank: int, fn: Callable[..., Any], *args: Any) -> "Running":
    """Start `fn(*args)` in a process of its own.

    Raises:
        TypeError: `fn` or its arguments cannot be pickled.
    """
    try:
        # Not multiprocessing's own pickler: it would share tensors by descriptors that
        # die with their process.
        call = pickle.dumps((fn, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"{fn!r} cannot run in another process: {error}; use a function at a "
            "module's top level, and plain arguments"
        ) from error
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    ours, theirs = context.Pipe()
    settings = (torch.get_default_dtype(), torch.is_grad_enabled())
    process = context.Process(target=_run, args=(theirs, rank, call, settings))
    process.start()
    theirs.close()
    return Running(rank, process, ours)


@dataclass(frozen=True)
class Running:
    """A started rank."""

    rank: int
    process: BaseProcess
    pipe: Connection

    def outcome(self) -> Outcome:
        """What it sent, or how it ended; only once the pipe is readable."""
        try:
            found = pickle.loads(self.pipe.recv_bytes())
            assert isinstance(found, Outcome)
            return found
        except (EOFError, ConnectionResetError):
            self.process.join(GRACE_SECONDS)
            text = f"ended with {_exit_name(self.process.exitcode)} and no result"
            return self.failed(text)

    def failed(self, text: str) -> Outcome:
        """An outcome for a rank that cannot speak for itself."""
        error = RankDied(text)
        return Outcome(failure=Failure(self.rank, error, text, time.monotonic()))

    def kill(self) -> None:
        """End it and its children, whatever they do."""
        if self.process.is_alive() and self.process.pid is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no group of its own yet
                self.process.kill()
        self.process.join()
        self.pipe.close()


def collect(ranks: list[Running], timeout: float) -> dict[int, Outcome]:
    """Wait for all ranks, and kill them all in the end.

    After the first failure the others get GRACE_SECONDS to say what they saw.
    """
    outcomes: dict[int, Outcome] = {}
    waiting = {running.pipe: running for running in ranks}
    deadline = time.monotonic() + timeout
    try:
        while waiting:
            left = deadline - time.monotonic()
            ready = wait(list(waiting), max(0.0, left))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                running = waiting.pop(pipe)
                outcomes[running.rank] = running.outcome()
                if outcomes[running.rank].failure is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        any_failure = any(o.failure is not None for o in outcomes.values())
        when = "after another rank failed" if any_failure else f"after {timeout:g} s"
        for running in waiting.values():
            outcomes[running.rank] = running.failed(f"still running {when}")
    finally:
        for running in ranks:
            running.kill()
    return outcomes


def _run(
    pipe: Connection, rank: int, call: bytes, settings: tuple[torch.dtype, bool]
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    torch.set_num_threads(1)
    torch.set_default_dtype(settings[0])
    torch.set_grad_enabled(settings[1])
    try:
        fn, args = pickle.loads(call)
        sent = pickle.dumps(Outcome(result=fn(*args)))
    except BaseException as error:
        now = time.monotonic()
        failure = Failure(rank, error, describe_error(error), now).portable()
        sent = pickle.dumps(Outcome(failure=failure))
    pipe.send_bytes(sent)


def _exit_name(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
