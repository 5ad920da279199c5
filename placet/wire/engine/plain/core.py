"""A core in plain Python: one thread, one lock, sockets.

It carries the same protocol as the native core, with which it can talk; it is there
for machines without a compiler, and to be read. `Machine` holds all the state.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from placet.errors import WireError
from placet.wire.daemons import GATE
from placet.wire.engine.core import Core, Counters, Event, Link, State, Task
from placet.wire.engine.frames import MESSAGE_BYTES
from placet.wire.engine.plain.channel import Channel, Pipe
from placet.wire.engine.plain.machine import Machine

CLOSE_SECONDS = 1.0
"""Closing waits so long for peers to take what is queued."""

HUNG_SECONDS = 0.1
"""When one socket of several ends, its link has so long to say BYE on the others."""


class PlainCore(Core):
    """Moves the bytes of tasks over sockets; ignores the links' shared memory.

    Args:
        peer: this process's own number.
        links: to the others; owned by the core from now on.
        spin_seconds: how long the thread looks again before it sleeps.
    """

    def __init__(
        self, peer: int, links: Sequence[Link], *, spin_seconds: float = 0.0
    ) -> None:
        self._machine = Machine(links)
        self._spin_seconds = spin_seconds
        self._news = threading.Condition(threading.RLock())
        self._closed = False
        self._close_by = 0.0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._poller.register(self._wake, select.EPOLLIN)
        self._pipes: dict[int, tuple[Channel, Pipe]] = {}
        # Edge-triggered: sockets that wait for their turn then tell us only once.
        mask = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
        for channel in self._machine.channels():
            for pipe in channel.pipes:
                number = pipe.connection.fileno()
                self._pipes[number] = channel, pipe
                self._poller.register(number, mask)
        self._thread = threading.Thread(
            target=self._run, name=f"placet-core-{peer}", daemon=True
        )
        self._thread.start()

    def submit(self, task: Task) -> int:
        """Start a task; its handle.

        Raises:
            ValueError: the schedule does not fit the tensors or the links.
            TypeError: a tensor is not flat, contiguous and on the CPU.
            WireError: the core is closed.
        """
        with self._news:
            self._check_open()
            handle = self._machine.submit(task)
            self._share_news()
            return handle

    def wait(self, handle: int, seconds: float) -> State:
        """Until the task is done or failed, at most so long."""
        with self._news:
            running = self._machine.run_of(handle)
            self._news.wait_for(
                lambda: running.state is not State.PENDING, _timeout(seconds)
            )
            return running.state

    def state(self, handle: int) -> State:
        """How far a task is, at once."""
        with self._news:
            return self._machine.run_of(handle).state

    def heard(self, handle: int) -> frozenset[int]:
        """The peers that are known to have submitted the task's collective."""
        with self._news:
            return frozenset(self._machine.run_of(handle).heard)

    def fail(self, handle: int) -> None:
        """Fail a task; its buffers are not touched once this has returned."""
        with self._news:
            self._machine.fail(handle)
            self._news.notify_all()

    def release(self, handle: int) -> None:
        """Forget a task that is done or failed."""
        with self._news:
            self._machine.release(handle)

    def send(self, peer: int, message: bytes) -> None:
        """Send a message to a peer; dropped if the peer is lost.

        Raises:
            ValueError: it is too long.
            WireError: the core is closed.
        """
        if len(message) > MESSAGE_BYTES:
            raise ValueError(
                f"message of {len(message)} bytes, at most {MESSAGE_BYTES}"
            )
        with self._news:
            self._check_open()
            self._machine.send(peer, message)
            self._share_news()

    def next_event(self, seconds: float) -> Event | None:
        """The next event, or None after so long."""
        with self._news:
            self._news.wait_for(lambda: self._machine.has_events, _timeout(seconds))
            return self._machine.next_event()

    def advance(self, epoch: int, lost: frozenset[int]) -> None:
        """Begin a new epoch.

        Raises:
            ValueError: it is not later than the last.
            WireError: the core is closed.
        """
        with self._news:
            self._check_open()
            self._machine.advance(epoch, lost)
            self._news.notify_all()

    def counters(self) -> Counters:
        """What was done so far."""
        with self._news:
            return self._machine.counters()

    def close(self) -> None:
        """Say BYE, end all links and the thread; pending tasks fail."""
        with self._news:
            if not self._closed:
                self._closed = True
                self._close_by = time.monotonic() + CLOSE_SECONDS
                self._machine.begin_close()
                self._news.notify_all()
                os.eventfd_write(self._wake, 1)
        self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise WireError("the engine's core is closed")

    def _share_news(self) -> None:
        self._news.notify_all()
        if self._machine.busy:
            os.eventfd_write(self._wake, 1)

    # The thread.

    def _run(self) -> None:
        moved_at = time.monotonic()
        while True:
            now = time.monotonic()
            seconds = 0.0 if now - moved_at < self._spin_seconds else self._patience()
            found = self._poller.poll(seconds)
            with GATE, self._news:
                try:
                    moved = self._pass(found)
                    if self._closed and self._finish_close():
                        break
                except Exception as error:
                    # A thread that dies in silence would hang its callers.
                    moved = True
                    for channel in self._machine.channels():
                        self._machine.lose(channel, f"the core failed: {error!r}")
                if moved:
                    moved_at = time.monotonic()
                    self._news.notify_all()
        self._poller.close()
        os.close(self._wake)

    def _patience(self) -> float | None:
        """How long the thread may sleep; None for ever."""
        with self._news:
            if self._machine.busy:
                return 0.0
            hung = [x.hung_since for x in self._machine.channels()]
            until = [x + HUNG_SECONDS for x in hung if x is not None]
            if self._closed:
                until = [self._close_by]
            if not until:
                return None
            return max(0.0, min(until) - time.monotonic())

    def _pass(self, found: list[tuple[int, int]]) -> bool:
        """Read and send what can be; whether anything happened."""
        ends = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
        readable = []
        for number, mask in found:
            if number == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                continue
            channel, pipe = self._pipes[number]
            if mask & select.EPOLLOUT:
                pipe.blocked = False
            if mask & ends and channel.hung_since is None:
                channel.hung_since = time.monotonic()
            readable.append(channel)
        moved = self._machine.work(readable)
        now = time.monotonic()
        for channel in self._machine.channels():
            since = channel.hung_since
            is_hung = since is not None and now - since >= HUNG_SECONDS
            if is_hung and not channel.unread and not self._closed:
                self._machine.lose(channel, "one of its connections was closed")
                moved = True
        return moved

    def _finish_close(self) -> bool:
        """End the links that have said all; whether none is left."""
        late = time.monotonic() >= self._close_by
        for channel in self._machine.channels():
            if late:
                self._machine.lose(channel, "closed")
            elif channel.idle():
                # The peer answers BYE by closing; until then we read what it still
                # sends: closing on unread data would cut off what we sent last.
                for pipe in channel.pipes:
                    with contextlib.suppress(OSError):
                        pipe.connection.shutdown(socket.SHUT_WR)
        return not self._machine.channels()


def _timeout(seconds: float) -> float:
    return min(seconds, threading.TIMEOUT_MAX)
