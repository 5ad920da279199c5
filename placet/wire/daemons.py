"""Daemon threads do nothing any more once the interpreter ends.

# NOTE [Daemon threads at exit]
While the interpreter ends, a daemon thread that asks for its lock is ended on the spot.
torch asks for it in C++ destructors (whenever a tensor is freed, too), where that
aborts the whole process: "terminate called without an active exception". So what such a
thread does with tensors, it does inside `GATE`. At exit the gate closes: what is inside
may finish, whoever comes later stops there for good, with all that it holds.
"""

import atexit
import os
from threading import Condition, Event
from types import TracebackType
from typing import Self

EXIT_SECONDS = 1.0
"""How long the interpreter's end waits for what daemon threads are doing."""


class Gate:
    """A place where threads work, until it closes."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_inside = 0
        self.is_closed = False

    def __enter__(self) -> Self:
        """Go in, or stop for good if it has closed."""
        with self._changed:
            if not self.is_closed:
                self._num_inside += 1
                return self
        while True:
            Event().wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        """Leave."""
        with self._changed:
            self._num_inside -= 1
            self._changed.notify_all()

    def close(self, seconds: float = EXIT_SECONDS) -> bool:
        """Let nobody in any more; whether all have left within so many seconds."""
        with self._changed:
            self.is_closed = True
            return self._changed.wait_for(lambda: not self._num_inside, seconds)

    def reopen(self) -> None:
        """As new: a forked child has none of the threads inside."""
        self._changed, self._num_inside, self.is_closed = Condition(), 0, False


GATE = Gate()
"""The one of this process."""

atexit.register(GATE.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=GATE.reopen)
