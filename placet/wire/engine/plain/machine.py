"""The plain core without its thread and clock: whoever calls it holds one lock.

    board.py      what is known: tasks, channels, events
    incoming.py   frames of peers are put where they belong
    outgoing.py   sockets are filled with frames

Nothing here blocks.

# NOTE [Telling that a collective is submitted]
A sender may not go on before it has heard that the receiver has submitted the
collective. It hears by READY, or by any data of it. So `submit` first sends what it
can, and then READY to those it will receive from and has not sent data. That includes
those whose data all came early: their account must be given back.
"""

from collections.abc import Sequence

from placet.wire.engine.core import Counters, Event, EventKind, Link, State, Task
from placet.wire.engine.frames import FrameKind
from placet.wire.engine.plain.board import Board
from placet.wire.engine.plain.channel import Channel
from placet.wire.engine.plain.incoming import read, take_early
from placet.wire.engine.plain.outgoing import pump, queue
from placet.wire.engine.plain.tasks import Running


class Machine:
    """What a core does, one call at a time.

    Args:
        links: to the peers.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._board = Board(links)
        self._runs: dict[int, Running] = {}
        self._num_handles = 0

    def channels(self) -> list[Channel]:
        """Those that have not ended."""
        return self._board.open_channels()

    @property
    def busy(self) -> bool:
        """Whether `work` would do more at once."""
        unread = any(channel.unread for channel in self.channels())
        return self._board.unsent or unread

    @property
    def has_events(self) -> bool:
        """Whether `next_event` would give one."""
        return bool(self._board.events)

    def submit(self, task: Task) -> int:
        """Start a task; see `Core.submit`."""
        board, running = self._board, Running(self._num_handles + 1, task)
        unknown = running.peers - set(board.channels)
        if unknown:
            raise ValueError(f"schedule names peers {sorted(unknown)}: no link to them")
        if task.collective in board.active:
            raise ValueError(
                f"collective {task.collective:#x} is in flight already; a number is"
                " used once"
            )
        self._num_handles = running.handle
        self._runs[running.handle] = running
        board.begin(running)
        take_early(board, running)
        board.check_peers(running)
        board.progress(running)
        pump(board)
        for peer in set(running.receives) - running.told:
            queue(board, board.channels[peer], FrameKind.READY, running=running)
        pump(board)
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
        self._board.end(self.run_of(handle), State.FAILED)

    def release(self, handle: int) -> None:
        """Forget a task that is done or failed.

        Raises:
            ValueError: it is neither.
        """
        if self.run_of(handle).state is State.PENDING:
            raise ValueError(f"handle {handle} is still running; fail it first")
        del self._runs[handle]

    def send(self, peer: int, message: bytes) -> None:
        """Send a message, if the peer is there."""
        channel = self._board.channels.get(peer)
        if channel is not None:
            queue(self._board, channel, FrameKind.CONTROL, message)
            pump(self._board)

    def next_event(self) -> Event | None:
        """The next event, if there is one."""
        if not self._board.events:
            return None
        event = self._board.events.popleft()
        if event.kind is EventKind.MESSAGE:
            channel = self._board.channels[event.peer]
            channel.unread_message_bytes -= len(event.data)
        return event

    def advance(self, epoch: int, lost: frozenset[int]) -> None:
        """Begin a new epoch; see `Core.advance`.

        Raises:
            ValueError: it is not later than the last.
        """
        board = self._board
        if epoch <= board.epoch:
            raise ValueError(f"epoch {epoch} after {board.epoch}: needed a later one")
        board.fail_all()
        board.dead.clear()
        board.epoch = epoch
        for channel in board.open_channels():
            if channel.peer in lost:
                board.end_channel(channel, "left out of the new epoch", None)
            else:
                channel.advance(epoch)

    def begin_close(self) -> None:
        """Fail what is pending and say BYE to everyone."""
        self._board.closing = True
        self._board.fail_all()
        for channel in self._board.open_channels():
            queue(self._board, channel, FrameKind.BYE)
        pump(self._board)

    def counters(self) -> Counters:
        """What was done so far."""
        board = self._board
        return Counters(board.control_bytes, board.num_preemptions, board.num_early)

    def work(self, readable: Sequence[Channel]) -> bool:
        """Read from channels and send what can be; whether there was any to read."""
        channels = {x.peer: x for x in self.channels() if x.unread}
        channels.update((x.peer, x) for x in readable)
        for channel in channels.values():
            read(self._board, channel)
        pump(self._board)
        return bool(channels)

    def lose(self, channel: Channel, why: str) -> None:
        """End a channel."""
        self._board.end_channel(channel, why, EventKind.LOST)
