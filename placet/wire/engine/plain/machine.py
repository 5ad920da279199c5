"""The plain core's mind: tasks, channels and events, without threads or clocks.

Whoever calls it holds one lock. Nothing here blocks.

# NOTE [Telling that a collective is submitted]
A sender may not go on before it has heard that the receiver has submitted the
collective. It hears by READY, or by any data of it. So `submit` first sends what it
can, and then READY to those it will receive from and has not sent data. That includes
those whose data all came early: their account must be given back.
"""

import json
from collections import deque
from collections.abc import Sequence

from placet.wire.engine.core import Counters, Event, EventKind, Link, State, Task
from placet.wire.engine.frames import (
    HEADER,
    BadFrame,
    FrameKind,
    Header,
    pack,
)
from placet.wire.engine.plain.channel import Channel, LinkEnded, Outgoing
from placet.wire.engine.plain.chooser import choose
from placet.wire.engine.plain.early import EarlyLane, check_continues
from placet.wire.engine.plain.tasks import Running

FRAMES_A_PASS = 32
"""So many frames are read from a peer before others, and sending, have their turn."""

ROUNDS_A_PASS = 8
"""So many times sockets are filled before reading has its turn."""

UNREAD_MESSAGE_BYTES = 1 << 26
"""A peer that sends more messages than this, which nobody takes, is cut off."""

_NO_BYTES = memoryview(b"")


class Machine:
    """All state of a core.

    Args:
        links: to the peers.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self.channels: dict[int, Channel] = {}
        for link in links:
            self.channels[link.peer] = Channel(link, 0)
        self.events: deque[Event] = deque()
        self.closing = False
        self.unsent = False
        self._epoch = 0
        self._runs: dict[int, Running] = {}
        self._active: dict[int, Running] = {}
        self._dead: set[int] = set()
        self._num_handles = 0
        self._control_bytes = 0
        self._num_preemptions = 0
        self._num_early = 0

    # What the caller asks for.

    def submit(self, task: Task) -> int:
        """Start a task; see `Core.submit`."""
        running = Running(self._num_handles + 1, task)
        unknown = running.peers - set(self.channels)
        if unknown:
            raise ValueError(f"schedule names peers {sorted(unknown)}: no link to them")
        if task.collective in self._active:
            raise ValueError(
                f"collective {task.collective:#x} is in flight already; a number is"
                " used once"
            )
        self._num_handles = running.handle
        self._runs[running.handle] = running
        self._active[running.collective] = running
        for peer in running.sends:
            if self.channels[peer].ended is None:
                self.channels[peer].lanes[running.handle] = running
        if any(self.channels[peer].ended is not None for peer in running.peers):
            self._end(running, State.FAILED)
        self._take_early(running)
        self._progress(running)
        self.pump()
        for peer in set(running.receives) - running.told:
            self._queue(self.channels[peer], FrameKind.READY, running=running)
        self.pump()
        return running.handle

    def run_of(self, handle: int) -> Running:
        """The task of a handle.

        Raises:
            ValueError: there is none.
        """
        if handle not in self._runs:
            raise ValueError(f"handle {handle}: released, or never submitted")
        return self._runs[handle]

    def fail(self, handle: int) -> None:
        """Fail a task, if it is not done."""
        self._end(self.run_of(handle), State.FAILED)

    def release(self, handle: int) -> None:
        """Forget a task that is done or failed."""
        if self.run_of(handle).state is State.PENDING:
            raise ValueError(f"handle {handle} is still running; fail it first")
        del self._runs[handle]

    def send(self, peer: int, message: bytes) -> None:
        """Send a message, if the peer is there."""
        channel = self.channels.get(peer)
        if channel is not None and channel.ended is None:
            self._queue(channel, FrameKind.CONTROL, message)
            self.pump()

    def next_event(self) -> Event | None:
        """The next event, if there is one."""
        if not self.events:
            return None
        event = self.events.popleft()
        if event.kind is EventKind.MESSAGE:
            self.channels[event.peer].unread_message_bytes -= len(event.data)
        return event

    def advance(self, epoch: int, lost: frozenset[int]) -> None:
        """Begin a new epoch; see `Core.advance`."""
        if epoch <= self._epoch:
            raise ValueError(f"epoch {epoch} after {self._epoch}: needed a later one")
        self._fail_all()
        self._epoch = epoch
        self._dead.clear()
        for channel in self.channels.values():
            if channel.ended is None and channel.peer in lost:
                self._end_channel(channel, "left out of the new epoch", None)
            if channel.ended is None:
                kept = [x for x in channel.control if x[3] != FrameKind.READY]
                channel.control = deque(kept)
                channel.advance(epoch)

    def begin_close(self) -> None:
        """Fail what is pending and say BYE to everyone."""
        self.closing = True
        self._fail_all()
        for channel in self._open():
            self._queue(channel, FrameKind.BYE)
        self.pump()

    def counters(self) -> Counters:
        """What was done so far."""
        return Counters(self._control_bytes, self._num_preemptions, self._num_early)

    # What comes from peers.

    def read(self, channel: Channel) -> None:
        """Take what has come on a channel, up to a number of frames."""
        channel.unread = False
        for _ in range(FRAMES_A_PASS):
            if channel.ended is not None:
                return
            try:
                frame = channel.read()
                if frame is None:
                    return
                self._take(channel, *frame)
            except BadFrame as error:
                self._end_channel(channel, f"malformed frame: {error}", EventKind.LOST)
            except LinkEnded as error:
                self._end_channel(channel, str(error), EventKind.LOST)
        channel.unread = True

    def lose(self, channel: Channel, why: str) -> None:
        """End a channel."""
        self._end_channel(channel, why, EventKind.LOST)

    def _take(self, channel: Channel, header: Header, body: memoryview) -> None:
        self._control_bytes += HEADER.size
        if header.kind is FrameKind.BYE:
            self._end_channel(channel, "the peer left", EventKind.LEFT)
        elif header.kind is FrameKind.CONTROL:
            self._take_message(channel, bytes(body))
        elif self.closing or header.epoch < self._epoch:
            return
        elif header.kind is FrameKind.READY:
            self._take_ready(channel, header)
        else:
            self._take_data(channel, header, body)

    def _take_message(self, channel: Channel, message: bytes) -> None:
        # Whatever its epoch: re-forming a group needs messages across epochs.
        self._control_bytes += len(message)
        channel.unread_message_bytes += len(message)
        if channel.unread_message_bytes > UNREAD_MESSAGE_BYTES:
            raise BadFrame(f"more than {UNREAD_MESSAGE_BYTES} bytes of unread messages")
        if not self.closing:
            self.events.append(Event(EventKind.MESSAGE, channel.peer, 0, message))

    def _take_ready(self, channel: Channel, header: Header) -> None:
        # See early.py, NOTE [When a READY is remembered].
        if header.epoch > self._epoch:
            channel.set_aside(header.epoch).add_ready(header)
            return
        running = self._active.get(header.collective)
        if running is not None:
            self._hear(channel, running, header.fingerprint)
            return
        was_sent = channel.account.give_back(header.collective)
        if not was_sent and header.collective not in self._dead:
            channel.early.add_ready(header)

    def _take_data(self, channel: Channel, header: Header, body: memoryview) -> None:
        if header.epoch > self._epoch:
            channel.set_aside(header.epoch).add_data(header, body)
            return
        channel.sticky = header.collective
        running = self._active.get(header.collective)
        if running is not None:
            self._deliver(channel, running, header, body)
        elif header.collective in self._dead:
            channel.account.give_back(header.collective)
        else:
            channel.early.add_data(header, body)

    def _deliver(
        self, channel: Channel, running: Running, header: Header, body: memoryview
    ) -> None:
        """Give data to the task they are for."""
        expected_bytes = running.expected_bytes(channel.peer)
        lane = running.receives.get(channel.peer)
        if lane is None or lane.moved_bytes == 0:
            same = header.lane_bytes == expected_bytes
            if not same or header.fingerprint != running.fingerprint:
                self._mismatch(channel, running, header.fingerprint, header.lane_bytes)
                return
        assert lane is not None
        check_continues(
            header, running.fingerprint, expected_bytes, moved_bytes=lane.moved_bytes
        )
        if len(body) % running.itemsize:
            raise BadFrame(
                f"{len(body)} bytes of elements of {running.itemsize}: not whole ones"
            )
        self._hear(channel, running, header.fingerprint)
        running.receive(channel.peer, body)
        self._progress(running)

    def _take_early(self, running: Running) -> None:
        """Give a task what came before it was submitted."""
        was_early = False
        for channel in self._open():
            fingerprint = channel.early.take_ready(running.collective)
            if fingerprint is not None:
                self._hear(channel, running, fingerprint)
            lane = channel.early.take_data(running.collective)
            if lane is not None:
                was_early = True
                self._deliver_early(channel, running, lane)
        self._num_early += was_early

    def _deliver_early(
        self, channel: Channel, running: Running, lane: EarlyLane
    ) -> None:
        if running.state is not State.PENDING:
            return
        header = Header(
            FrameKind.DATA,
            self._epoch,
            running.collective,
            lane.fingerprint,
            0,
            lane.lane_bytes,
            len(lane.data),
        )
        try:
            self._deliver(channel, running, header, memoryview(lane.data))
        except BadFrame as error:
            self._end_channel(channel, f"malformed frame: {error}", EventKind.LOST)

    def _hear(self, channel: Channel, running: Running, fingerprint: int) -> None:
        """The peer has submitted the task's collective."""
        channel.account.give_back(running.collective)
        running.heard.add(channel.peer)
        if fingerprint != running.fingerprint:
            self._mismatch(channel, running, fingerprint, 0)

    def _mismatch(
        self, channel: Channel, running: Running, fingerprint: int, lane_bytes: int
    ) -> None:
        if running.state is not State.PENDING:
            return
        channel.account.give_back(running.collective)
        running.heard.add(channel.peer)
        found = {
            "fingerprint": fingerprint,
            "lane_bytes": lane_bytes,
            "expected_bytes": running.expected_bytes(channel.peer),
        }
        data = json.dumps(found).encode()
        kind = EventKind.MISMATCH
        self.events.append(Event(kind, channel.peer, running.handle, data))
        self._end(running, State.FAILED)

    # What goes to peers.

    def pump(self) -> None:
        """Send what can be sent; not for long, and `unsent` says if there is more."""
        for _ in range(ROUNDS_A_PASS):
            self.unsent = False
            for channel in self._open():
                try:
                    self.unsent |= self._pump(channel)
                except LinkEnded as error:
                    self._drain(channel, str(error))
                    self.unsent = True
            if not self.unsent:
                return

    def _pump(self, channel: Channel) -> bool:
        filled = False
        while channel.has_room():
            frame = self._next_frame(channel)
            if frame is None:
                break
            channel.put(frame)
            filled = True
        gone = channel.flush()
        for frame in gone:
            if frame.running is not None:
                frame.running.sent(frame.index, frame.num_bytes)
        for running in {
            x.running.handle: x.running for x in gone if x.running
        }.values():
            self._progress(running)
        return filled or bool(gone)

    def _drain(self, channel: Channel, why: str) -> None:
        """We cannot send any more: read what the peer said before it went."""
        channel.unread = True
        while channel.ended is None and channel.unread:
            self.read(channel)
        if channel.ended is None:
            self.lose(channel, why)

    def _next_frame(self, channel: Channel) -> Outgoing | None:
        if channel.control:
            return Outgoing([memoryview(channel.control.popleft())])
        candidates = (
            running
            for running in channel.lanes.values()
            if self._room(channel, running)
        )
        chosen = choose(
            candidates, num_slices=channel.num_slices, sticky=channel.sticky
        )
        if chosen is None:
            return None
        last = channel.last
        if last is not None and last is not chosen and last.sends[channel.peer].begun:
            self._num_preemptions += 1
        channel.last = chosen
        channel.num_slices += 1
        return self._slice(channel, chosen)

    def _room(self, channel: Channel, running: Running) -> int:
        """Bytes of the task that may go on the channel now."""
        most = 1 << 62
        if channel.peer not in running.heard:
            most = channel.account.room(running.collective)
        return running.sendable(channel.peer, most)

    def _slice(self, channel: Channel, running: Running) -> Outgoing:
        num_bytes = self._room(channel, running)
        index, start, memory = running.take(channel.peer, num_bytes)
        lane = running.sends[channel.peer]
        if channel.peer not in running.heard:
            channel.account.add(running.collective, num_bytes)
        if lane.complete:
            del channel.lanes[running.handle]
        header = Header(
            FrameKind.DATA,
            self._epoch,
            running.collective,
            running.fingerprint,
            start,
            lane.total_bytes,
            num_bytes,
        )
        self._control_bytes += HEADER.size
        head = memoryview(pack(header))
        return Outgoing([head, memory], running, index, num_bytes)

    def _queue(
        self,
        channel: Channel,
        kind: FrameKind,
        message: bytes = b"",
        running: Running | None = None,
    ) -> None:
        """Queue a frame that is not data."""
        if channel.ended is None:
            collective, fingerprint = 0, 0
            if running is not None:
                collective, fingerprint = running.collective, running.fingerprint
                running.told.add(channel.peer)
            header = Header(
                kind, self._epoch, collective, fingerprint, num_bytes=len(message)
            )
            channel.control.append(pack(header) + message)
            self._control_bytes += HEADER.size + len(message)

    # How things end.

    def _open(self) -> list[Channel]:
        return [x for x in self.channels.values() if x.ended is None]

    def _progress(self, running: Running) -> None:
        if running.state is State.PENDING:
            running.run_local()
            if running.complete:
                self._end(running, State.DONE)

    def _end(self, running: Running, state: State) -> None:
        if running.state is not State.PENDING:
            return
        for peer in running.sends:
            channel = self.channels[peer]
            channel.lanes.pop(running.handle, None)
            channel.keep(running)
            if channel.last is running:
                channel.last = None
        del self._active[running.collective]
        if state is State.FAILED:
            self._dead.add(running.collective)
        running.end(state)
        if running.notify:
            self.events.append(Event(EventKind.FINISHED, -1, running.handle))

    def _fail_all(self) -> None:
        for running in list(self._active.values()):
            self._end(running, State.FAILED)

    def _end_channel(self, channel: Channel, why: str, kind: EventKind | None) -> None:
        if channel.ended is not None:
            return
        channel.ended = why
        for running in list(self._active.values()):
            left = kind is EventKind.LEFT
            peer = channel.peer
            if running.needs(peer) if left else peer in running.peers:
                self._end(running, State.FAILED)
        channel.close()
        if kind is not None and not self.closing:
            data = why.encode()
            self.events.append(Event(kind, channel.peer, 0, data))
