"""Futures of the engine: a move in flight, and one that needed no flight.

A future holds its buffers until the core is done with them, and the wire holds the
future so long: one that its owner drops does no harm.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from placet.errors import WireError
from placet.wire.engine.buffer_watch import BufferWatch
from placet.wire.engine.prepared import Prepared
from placet.wire.interface import Future, Traffic

Callback: TypeAlias = Callable[[Future], None]


class Keeper(ABC):
    """Whoever carries futures to their end."""

    @abstractmethod
    def finish(self, future: "EngineFuture") -> None:
        """Block until a future has ended."""

    @abstractmethod
    def has_ended(self, future: "EngineFuture") -> bool:
        """Whether `finish` would return at once."""

    @abstractmethod
    def call_when_done(self, future: "EngineFuture", callback: Callback) -> None:
        """Call back when a future has ended."""


@dataclass(eq=False, slots=True)
class EngineFuture(Future):
    """A submitted move.

    Args:
        keeper: carries it to its end.
        handle: the core's number of the task.
        collective: the number on the wire.
        key: as it was submitted.
        prepared: what was submitted.
        payload: kept until the core is done with it.
        out: the result, in the end.
        submitted: when, in seconds of the monotonic clock.
        deadline: when it counts as failed.
        notify: whether the core tells of its end.
        watch: finds changes of the buffers in flight, in debug mode.
        epoch: in which it was submitted.
        ended: done or failed, for good.
        error: why it failed.
        waiters: threads that wait for it now.
        waiting_since: when the first of these began.
        expiring: its deadline has passed, and a thread finds out why.
        callbacks: what to call in the end.
    """

    keeper: Keeper
    handle: int
    collective: int
    key: str
    prepared: Prepared
    payload: Tensor | None
    out: Tensor
    submitted: float
    deadline: float
    notify: bool
    watch: BufferWatch | None
    epoch: int
    ended: bool = False
    error: WireError | None = None
    waiters: int = 0
    waiting_since: float = 0.0
    expiring: bool = False
    callbacks: list[Callback] = field(default_factory=list)

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return self.prepared.move.group

    @property
    def what(self) -> str:
        """Key and move, as errors begin."""
        return self.prepared.what(self.key)

    def done(self) -> bool:
        return self.ended or self.keeper.has_ended(self)

    def wait(self) -> Tensor:
        if not self.ended:
            self.keeper.finish(self)
        if self.error is not None:
            raise raisable(self.error)
        return self.out

    def traffic(self) -> Traffic:
        if not self.done() or self.error is not None:
            raise WireError(f"{self.what}: no traffic to report before it is done")
        return self.prepared.traffic

    def on_done(self, callback: Callback) -> None:
        """Call `callback(self)` once it is done or has failed.

        In the wire's own thread, soon after the end if it was submitted with `notify`,
        else up to 0.05 s later; at once, in the caller's thread, if it has ended. The
        callback must be short, and must not wait for another future. An error of it
        goes to `threading.excepthook`, which prints it; the wire goes on.
        """
        self.keeper.call_when_done(self, callback)


class FinishedFuture(Future):
    """A move that had nothing to move."""

    def __init__(self, out: Tensor) -> None:
        self._out = out

    def done(self) -> bool:
        return True

    def wait(self) -> Tensor:
        return self._out

    def traffic(self) -> Traffic:
        return Traffic(0, 0)

    def on_done(self, callback: Callback) -> None:
        """Call `callback(self)`, at once."""
        callback(self)


def raisable(error: WireError) -> WireError:
    """A copy: an error that is raised twice would keep all frames of the first time."""
    return type(error)(*error.args)
