"""Frames over the sockets of one link, both ways, without ever blocking.

Frame i goes whole to socket i modulo their number, and is taken from there in that
order: several sockets fill a link that one cannot, and frames stay in order.
"""

import contextlib
import socket
from collections import deque
from dataclasses import dataclass

from placet.wire.engine.core import Link
from placet.wire.engine.frames import (
    HEADER,
    SLICE_BYTES,
    FrameKind,
    Header,
    unpack,
)
from placet.wire.engine.plain.early import Account, Early
from placet.wire.engine.plain.tasks import Running

JOIN_BYTES = 1 << 16
"""Frames are joined in one system call until they have so many bytes."""

MAX_VIEWS = 128
"""Pieces of memory in one system call; the kernel allows 1024."""

UNSENT_BYTES = 1 << 17
"""The kernel holds so much of TCP unsent data, so that urgent moves overtake soon."""

UNIX_BUFFER_BYTES = 1 << 19
TCP_NOTSENT_LOWAT = 25
"""Linux's number of the option; Python has no name for it."""


class LinkEnded(Exception):
    """The peer closed the connection, or it broke."""


@dataclass
class Outgoing:
    """A frame on its way; `views` is what the kernel has not taken yet.

    Args:
        running, index, num_bytes: whose bytes it carries; None for control frames.
    """

    views: list[memoryview]
    running: Running | None = None
    index: int = -1
    num_bytes: int = 0

    def keep(self) -> None:
        """Hold a copy of what is left: the memory is the caller's again."""
        self.views = [memoryview(bytes(view)) for view in self.views]
        self.running = None


class Pipe:
    """One socket, with the frame that is partly received and those partly sent."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family == socket.AF_UNIX:
            size = UNIX_BUFFER_BYTES
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        else:
            option = (socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT)
            connection.setsockopt(*option, UNSENT_BYTES)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.blocked = False
        self.unsent_bytes = 0
        self._out: deque[Outgoing] = deque()
        self._head = memoryview(bytearray(HEADER.size))
        self._slice: memoryview | None = None
        self._header: Header | None = None
        self._body = memoryview(b"")
        self._got = 0

    def has_room(self) -> bool:
        """Whether another frame may be put here now."""
        return not self.blocked and self.unsent_bytes < JOIN_BYTES

    def put(self, frame: Outgoing) -> None:
        """Queue a frame; `flush` sends it."""
        self._out.append(frame)
        self.unsent_bytes += sum(map(len, frame.views))

    def flush(self) -> None:
        """Give the kernel what it takes.

        Raises:
            LinkEnded: the connection broke.
        """
        while self._out and not self.blocked:
            views: list[memoryview] = []
            for frame in self._out:
                views += frame.views
                if len(views) > MAX_VIEWS:
                    break
            try:
                flags = socket.MSG_NOSIGNAL
                num_sent = self.connection.sendmsg(views[:MAX_VIEWS], [], flags)
            except BlockingIOError:
                self.blocked = True
                return
            except OSError as error:
                raise LinkEnded(f"cannot send: {error.strerror}") from None
            self._took(num_sent)

    def _took(self, num_sent: int) -> None:
        self.unsent_bytes -= num_sent
        while self._out:
            views = self._out[0].views
            while views and num_sent >= len(views[0]):
                num_sent -= len(views.pop(0))
            if views:
                views[0] = views[0][num_sent:]
                return
            self._out.popleft()

    def read(self) -> tuple[Header, memoryview] | None:
        """A whole frame, or None until more comes; its body is valid until the next.

        Raises:
            BadFrame: what came is no frame.
            LinkEnded: nothing more will come.
        """
        while True:
            rest = self._rest()
            if not rest:
                assert self._header is not None
                frame = self._header, self._body
                self._header, self._got = None, 0
                return frame
            try:
                num_bytes = self.connection.recv_into(rest)
            except BlockingIOError:
                return None
            except OSError as error:
                raise LinkEnded(f"connection broken: {error.strerror}") from None
            if num_bytes == 0:
                inside = self._got or self._header is not None
                where = "in the middle of a frame" if inside else "without a BYE"
                raise LinkEnded(f"connection closed {where}")
            self._got += num_bytes

    def _rest(self) -> memoryview:
        """Where the next bytes go; empty when the frame is whole."""
        if self._header is None:
            if self._got < HEADER.size:
                return self._head[self._got :]
            self._header, self._got = unpack(self._head), 0
            self._body = self._room(self._header)
        return self._body[self._got :]

    def _room(self, header: Header) -> memoryview:
        if header.kind is not FrameKind.DATA:
            return memoryview(bytearray(header.num_bytes))
        if self._slice is None:
            self._slice = memoryview(bytearray(SLICE_BYTES))
        return self._slice[: header.num_bytes]


class Channel:
    """A link: its pipes, and what is remembered of the peer.

    Args:
        link: the connection.
        epoch: which one the group is in.
    """

    def __init__(self, link: Link, epoch: int) -> None:
        self.peer = link.peer
        self.pipes = [Pipe(connection) for connection in link.sockets]
        self.lanes: dict[int, Running] = {}
        self.control: deque[bytes] = deque()
        self.account = Account()
        self.early = Early(epoch)
        self.ahead: Early | None = None
        self.ended: str | None = None
        self.hung_since: float | None = None
        self.unread = False
        self.unread_message_bytes = 0
        self.num_slices = 0
        self.last: Running | None = None
        self.sticky = -1
        self._flying: deque[Outgoing] = deque()
        self._num_put = 0
        self._num_taken = 0

    def has_room(self) -> bool:
        """Whether the socket whose turn it is takes another frame."""
        return self.pipes[self._num_put % len(self.pipes)].has_room()

    def put(self, frame: Outgoing) -> None:
        """Queue a frame on the socket whose turn it is; `flush` sends it."""
        self.pipes[self._num_put % len(self.pipes)].put(frame)
        self._flying.append(frame)
        self._num_put += 1

    def flush(self) -> list[Outgoing]:
        """Send what can be sent; the frames that are gone now, in order.

        Raises:
            LinkEnded: the connection broke.
        """
        for pipe in self.pipes:
            pipe.flush()
        gone = []
        while self._flying and not self._flying[0].views:
            gone.append(self._flying.popleft())
        return gone

    def idle(self) -> bool:
        """Whether all that was queued is gone."""
        return not self._flying and not self.control

    def carries(self, running: Running) -> bool:
        """Whether something of the task is on its way."""
        return any(frame.running is running for frame in self._flying)

    def drop(self, running: Running) -> None:
        """A task ends: what is on its way of it goes on from a copy."""
        self.lanes.pop(running.handle, None)
        if self.last is running:
            self.last = None
        for frame in self._flying:
            if frame.running is running:
                frame.keep()

    def read(self) -> tuple[Header, memoryview] | None:
        """The next frame in order, or None until more comes.

        Raises:
            BadFrame: what came is no frame.
            LinkEnded: nothing more will come.
        """
        frame = self.pipes[self._num_taken % len(self.pipes)].read()
        self._num_taken += frame is not None
        return frame

    def set_aside(self, epoch: int) -> Early:
        """Where frames of an epoch that is not begun here yet wait; the newest only."""
        if self.ahead is None or self.ahead.epoch < epoch:
            self.ahead = Early(epoch)
        return self.ahead

    def advance(self, epoch: int) -> None:
        """Begin an epoch: forget what belonged to older ones."""
        self.account = Account()
        self.early = Early(epoch)
        self.lanes.clear()
        self.last, self.sticky = None, -1
        # A header's fourth byte is its kind; messages are not of an epoch.
        kept = [x for x in self.control if x[3] != FrameKind.READY]
        self.control = deque(kept)
        if self.ahead is not None and self.ahead.epoch <= epoch:
            if self.ahead.epoch == epoch:
                self.early = self.ahead
            self.ahead = None

    def close(self) -> None:
        """Close the sockets; what came of moves not submitted yet stays."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.connection.shutdown(socket.SHUT_RDWR)  # others may hold it, too
            pipe.connection.close()
        self.control.clear()
        self._flying.clear()
        self.lanes.clear()
        self.last, self.sticky = None, -1
        self.ahead = None
