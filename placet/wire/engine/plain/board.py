"""What a plain core knows: its tasks, channels and events, and how they end."""

from collections import deque
from collections.abc import Sequence

from placet.wire.engine.core import Event, EventKind, Link, State
from placet.wire.engine.plain.channel import Channel
from placet.wire.engine.plain.tasks import Running


class Board:
    """All state of a core.

    `dead` holds failed collectives of this epoch: their data are read and dropped.

    Args:
        links: to the peers.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self.channels = {link.peer: Channel(link, 0) for link in links}
        self.events: deque[Event] = deque()
        self.closing = False
        self.unsent = False
        self.epoch = 0
        self.active: dict[int, Running] = {}
        self.dead: set[int] = set()
        self.control_bytes = 0
        self.num_preemptions = 0
        self.num_early = 0

    def open_channels(self) -> list[Channel]:
        """Those that have not ended."""
        return [x for x in self.channels.values() if x.ended is None]

    def begin(self, running: Running) -> None:
        """A task is submitted."""
        self.active[running.collective] = running
        for peer in running.sends:
            self.channels[peer].lanes[running.handle] = running

    def check_peers(self, running: Running) -> None:
        """Fail a task that needs more of a peer which is gone."""
        for peer in running.peers:
            if self.channels[peer].ended is not None and running.needs(peer):
                self.end(running, State.FAILED)

    def progress(self, running: Running) -> None:
        """Something came or went: do what this allows, and notice the task's end."""
        if running.state is State.PENDING:
            running.run_local()
            if running.complete:
                self.end(running, State.DONE)

    def end(self, running: Running, state: State) -> None:
        """A task is done or failed; nothing if it was before."""
        if running.state is not State.PENDING:
            return
        for peer in running.sends:
            self.channels[peer].drop(running)
        del self.active[running.collective]
        if state is State.FAILED:
            self.dead.add(running.collective)
        running.end(state)
        if running.notify:
            self.events.append(Event(EventKind.FINISHED, -1, running.handle))

    def fail_all(self) -> None:
        """Fail all tasks."""
        for running in list(self.active.values()):
            self.end(running, State.FAILED)

    def end_channel(self, channel: Channel, why: str, kind: EventKind | None) -> None:
        """A peer is gone: the tasks fail that use it, or, if it left, still need it.

        Args:
            channel: to the peer.
            why: for the event.
            kind: of the event; None for none.
        """
        if channel.ended is not None:
            return
        channel.ended = why
        for running in list(self.active.values()):
            uses = channel.peer in running.peers
            if kind is EventKind.LEFT:
                uses = running.needs(channel.peer) or channel.carries(running)
            if uses:
                self.end(running, State.FAILED)
        channel.close()
        if kind is not None and not self.closing:
            self.events.append(Event(kind, channel.peer, 0, why.encode()))
