"""Faults as data: which rank fails, at which step, and how.

faults = [Crash(rank=1, step=3)]
observe = inject(faults, wire.rank)         # give it each step as it begins
for step in range(5):
    observe(step)
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


class InjectedFault(RuntimeError):
    """What `Raise` raises."""


@dataclass(frozen=True)
class Raise:
    """The rank raises InjectedFault at the beginning of the step."""

    rank: int
    step: int


@dataclass(frozen=True)
class Crash:
    """The rank's process is killed (SIGKILL): nothing of it gets to clean up."""

    rank: int
    step: int


@dataclass(frozen=True)
class Stall:
    """The rank stands still, until `released` is set or for ever in a process."""

    rank: int
    step: int
    released: threading.Event | None = None


Fault: TypeAlias = Raise | Crash | Stall


def inject(faults: Sequence[Fault], rank: int) -> Callable[[int], None]:
    """An observer that makes this rank's faults happen when it sees their step."""

    def observe(step: int) -> None:
        for fault in faults:
            if (fault.rank, fault.step) == (rank, step):
                _happen(fault)

    return observe


def _happen(fault: Fault) -> None:
    match fault:
        case Raise():
            raise InjectedFault(f"{fault}")
        case Crash():
            os.kill(os.getpid(), signal.SIGKILL)
        case Stall(released=None):
            threading.Event().wait()
        case Stall():
            assert fault.released is not None
            fault.released.wait()
