"""What goes to peers: sockets are filled with the frames that `choose` picks."""

from placet.wire.engine.core import EventKind
from placet.wire.engine.frames import HEADER, FrameKind, Header, pack
from placet.wire.engine.plain.board import Board
from placet.wire.engine.plain.channel import Channel, LinkEnded, Outgoing
from placet.wire.engine.plain.chooser import choose
from placet.wire.engine.plain.incoming import read
from placet.wire.engine.plain.tasks import Running

ROUNDS_A_PASS = 8
"""So many times sockets are filled before reading has its turn."""


def pump(board: Board) -> None:
    """Send what can be sent; not for long, and `unsent` says if there is more."""
    for _ in range(ROUNDS_A_PASS):
        board.unsent = False
        for channel in board.open_channels():
            try:
                board.unsent |= _pump(board, channel)
            except LinkEnded as error:
                _drain(board, channel, str(error))
                board.unsent = True
        if not board.unsent:
            return


def _pump(board: Board, channel: Channel) -> bool:
    filled = False
    while channel.has_room():
        frame = _next_frame(board, channel)
        if frame is None:
            break
        channel.put(frame)
        filled = True
    gone = channel.flush()
    for frame in gone:
        if frame.running is not None:
            frame.running.sent(frame.index, frame.num_bytes)
    for running in {x.running.handle: x.running for x in gone if x.running}.values():
        board.progress(running)
    return filled or bool(gone)


def _drain(board: Board, channel: Channel, why: str) -> None:
    """We cannot send any more: read what the peer said before it went."""
    channel.unread = True
    while channel.ended is None and channel.unread:
        read(board, channel)
    if channel.ended is None:
        board.end_channel(channel, why, EventKind.LOST)


def _next_frame(board: Board, channel: Channel) -> Outgoing | None:
    if channel.control:
        return Outgoing([memoryview(channel.control.popleft())])
    candidates = (
        running for running in channel.lanes.values() if _room(channel, running)
    )
    chosen = choose(candidates, num_slices=channel.num_slices, sticky=channel.sticky)
    if chosen is None:
        return None
    last = channel.last
    if last is not None and last is not chosen and last.sends[channel.peer].begun:
        board.num_preemptions += 1
    channel.last = chosen
    channel.num_slices += 1
    return _slice(board, channel, chosen)


def _room(channel: Channel, running: Running) -> int:
    """Bytes of the task that may go on the channel now."""
    most = 1 << 62
    if channel.peer not in running.heard:
        most = channel.account.room(running.collective)
    return running.sendable(channel.peer, most)


def _slice(board: Board, channel: Channel, running: Running) -> Outgoing:
    num_bytes = _room(channel, running)
    index, start, memory = running.take(channel.peer, num_bytes)
    lane = running.sends[channel.peer]
    if channel.peer not in running.heard:
        channel.account.add(running.collective, num_bytes)
    if lane.complete:
        del channel.lanes[running.handle]
    header = Header(
        FrameKind.DATA,
        board.epoch,
        running.collective,
        running.fingerprint,
        start,
        lane.total_bytes,
        num_bytes,
    )
    board.control_bytes += HEADER.size
    head = memoryview(pack(header))
    return Outgoing([head, memory], running, index, num_bytes)


def queue(
    board: Board,
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
            kind, board.epoch, collective, fingerprint, num_bytes=len(message)
        )
        channel.control.append(pack(header) + message)
        board.control_bytes += HEADER.size + len(message)
