"""The seam between the engine's mind (Python) and its muscle (`native` or `plain`).

A core moves the bytes of submitted tasks over links, in a thread of its own and in that
of whoever waits. It knows nothing of keys, deadlines or groups: only of collectives by
number, and of peers by number. What it notices it tells as events.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from socket import socket

from torch import Tensor

from placet.wire.engine.schedule import Schedule


@dataclass(frozen=True)
class Link:
    """An authenticated connection to a peer; the core owns it from then on.

    Args:
        peer: the peer's number; it never changes, whatever ranks are renumbered.
        sockets: connected stream sockets, in the same order on both sides; data are
            striped over them frame by frame. One of a Unix family in one host.
        send_memory: a descriptor of memory shared with the peer, of `memory_bytes`
            bytes, for what we send (see `rings`); -1 for none: all goes by socket.
        receive_memory: the same for what we receive.
        memory_bytes: size of each.
    """

    peer: int
    sockets: tuple[socket, ...]
    send_memory: int = -1
    receive_memory: int = -1
    memory_bytes: int = 0


@dataclass(frozen=True)
class Task:
    """A submitted move.

    Args:
        collective: its number on the wire (64 bits), equal on all members.
        fingerprint: a hash (64 bits) of what was submitted; members must agree.
        schedule: what to do; its peers are the core's peers.
        payload, out: flat contiguous CPU tensors, which may be one and the same for
            moves that allow it.
        priority: larger goes first; every 16th slice goes to the oldest all the same.
        notify: tell of its end by an event, too.
    """

    collective: int
    fingerprint: int
    schedule: Schedule
    payload: Tensor
    out: Tensor
    priority: int = 0
    notify: bool = False


class State(IntEnum):
    """How far a task is."""

    PENDING = 0
    DONE = 1
    FAILED = 2


class EventKind(IntEnum):
    """What an event tells."""

    MESSAGE = 1
    """`peer` sent `data`."""
    LOST = 2
    """The link to `peer` ended without BYE; `data` says why."""
    MISMATCH = 3
    """What `peer` sent for task `handle` does not fit it; `data` says how."""
    FINISHED = 4
    """Task `handle`, submitted with notify, is done or failed."""
    LEFT = 5
    """`peer` said BYE."""


@dataclass(frozen=True)
class Event:
    """Something the core noticed."""

    kind: EventKind
    peer: int = -1
    handle: int = 0
    data: bytes = b""


@dataclass(frozen=True)
class Counters:
    """What a core has done so far.

    Args:
        control_bytes: headers and messages, sent and received.
        num_preemptions: how often a move that could not go on, or was overtaken by a
            more urgent one, was put aside in the middle of a lane.
        num_early: moves whose first data came before they were submitted here.
    """

    control_bytes: int
    num_preemptions: int
    num_early: int


class Core(ABC):
    """Moves the bytes of tasks.

    All calls may come from any thread. A task fails when a link that its schedule uses
    is lost, when a peer's data do not fit it, or by `fail`.
    """

    @abstractmethod
    def submit(self, task: Task) -> int:
        """Start a task; its handle. Never blocks for a peer."""

    @abstractmethod
    def wait(self, handle: int, seconds: float) -> State:
        """Until the task is done or failed, at most so long; helps to move bytes."""

    @abstractmethod
    def state(self, handle: int) -> State:
        """How far a task is, at once."""

    @abstractmethod
    def heard(self, handle: int) -> frozenset[int]:
        """The peers that are known to have submitted the task's collective."""

    @abstractmethod
    def fail(self, handle: int) -> None:
        """Fail a task; its buffers are not touched once this has returned."""

    @abstractmethod
    def release(self, handle: int) -> None:
        """Forget a task that is done or failed."""

    @abstractmethod
    def send(self, peer: int, message: bytes) -> None:
        """Send a message to a peer; dropped if the peer is lost."""

    @abstractmethod
    def next_event(self, seconds: float) -> Event | None:
        """The next event, or None after so long. One thread calls this."""

    @abstractmethod
    def advance(self, epoch: int, lost: frozenset[int]) -> None:
        """Begin a new epoch: all tasks fail, links to `lost` close, frames of older
        epochs are dropped from now on."""

    @abstractmethod
    def counters(self) -> Counters:
        """What was done so far."""

    @abstractmethod
    def close(self) -> None:
        """Say BYE, end all links and the thread; pending tasks fail."""
