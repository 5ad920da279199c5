"""What comes from peers: each frame is checked and put where it belongs."""

import json

from placet.wire.engine.core import Event, EventKind, State
from placet.wire.engine.frames import HEADER, BadFrame, FrameKind, Header
from placet.wire.engine.plain.board import Board
from placet.wire.engine.plain.channel import Channel, LinkEnded
from placet.wire.engine.plain.early import EarlyLane, check_continues
from placet.wire.engine.plain.tasks import Running

FRAMES_A_PASS = 32
"""So many frames are read from a peer before others, and sending, have their turn."""

UNREAD_MESSAGE_BYTES = 1 << 26
"""A peer that sends more messages than this, which nobody takes, is cut off."""


def read(board: Board, channel: Channel) -> None:
    """Take what has come on a channel, up to a number of frames."""
    channel.unread = False
    for _ in range(FRAMES_A_PASS):
        if channel.ended is not None:
            return
        try:
            frame = channel.read()
            if frame is None:
                return
            _take(board, channel, *frame)
        except BadFrame as error:
            board.end_channel(channel, f"malformed frame: {error}", EventKind.LOST)
        except LinkEnded as error:
            board.end_channel(channel, str(error), EventKind.LOST)
    channel.unread = True


def _take(board: Board, channel: Channel, header: Header, body: memoryview) -> None:
    board.control_bytes += HEADER.size
    if header.kind is FrameKind.BYE:
        board.end_channel(channel, "the peer left", EventKind.LEFT)
    elif header.kind is FrameKind.CONTROL:
        _take_message(board, channel, bytes(body))
    elif board.closing or header.epoch < board.epoch:
        return
    elif header.kind is FrameKind.READY:
        _take_ready(board, channel, header)
    else:
        _take_data(board, channel, header, body)


def _take_message(board: Board, channel: Channel, message: bytes) -> None:
    # Whatever its epoch: re-forming a group needs messages across epochs.
    board.control_bytes += len(message)
    channel.unread_message_bytes += len(message)
    if channel.unread_message_bytes > UNREAD_MESSAGE_BYTES:
        raise BadFrame(f"more than {UNREAD_MESSAGE_BYTES} bytes of unread messages")
    if not board.closing:
        board.events.append(Event(EventKind.MESSAGE, channel.peer, 0, message))


def _take_ready(board: Board, channel: Channel, header: Header) -> None:
    # See early.py, NOTE [When a READY is remembered].
    if header.epoch > board.epoch:
        channel.set_aside(header.epoch).add_ready(header)
        return
    running = board.active.get(header.collective)
    if running is not None:
        _hear(board, channel, running, header.fingerprint)
        return
    was_sent = channel.account.give_back(header.collective)
    if not was_sent and header.collective not in board.dead:
        channel.early.add_ready(header)


def _take_data(
    board: Board, channel: Channel, header: Header, body: memoryview
) -> None:
    if header.epoch > board.epoch:
        channel.set_aside(header.epoch).add_data(header, body)
        return
    channel.sticky = header.collective
    running = board.active.get(header.collective)
    if running is not None:
        _deliver(board, channel, running, header, body)
    elif header.collective in board.dead:
        channel.account.give_back(header.collective)
    else:
        channel.early.add_data(header, body)


def _deliver(
    board: Board, channel: Channel, running: Running, header: Header, body: memoryview
) -> None:
    """Give data to the task they are for."""
    expected_bytes = running.expected_bytes(channel.peer)
    lane = running.receives.get(channel.peer)
    if lane is None or lane.moved_bytes == 0:
        same = header.lane_bytes == expected_bytes
        if not same or header.fingerprint != running.fingerprint:
            _mismatch(board, channel, running, header.fingerprint, header.lane_bytes)
            return
    assert lane is not None
    check_continues(
        header, running.fingerprint, expected_bytes, moved_bytes=lane.moved_bytes
    )
    if len(body) % running.itemsize:
        raise BadFrame(
            f"{len(body)} bytes of elements of {running.itemsize}: not whole ones"
        )
    _hear(board, channel, running, header.fingerprint)
    running.receive(channel.peer, body)
    board.progress(running)


def take_early(board: Board, running: Running) -> None:
    """Give a task what came before it was submitted."""
    was_early = False
    for channel in board.channels.values():  # also of peers that are gone
        fingerprint = channel.early.take_ready(running.collective)
        if fingerprint is not None:
            _hear(board, channel, running, fingerprint)
        lane = channel.early.take_data(running.collective)
        if lane is not None:
            was_early = True
            _deliver_early(board, channel, running, lane)
    board.num_early += was_early


def _deliver_early(
    board: Board, channel: Channel, running: Running, lane: EarlyLane
) -> None:
    if running.state is not State.PENDING:
        return
    header = Header(
        FrameKind.DATA,
        board.epoch,
        running.collective,
        lane.fingerprint,
        0,
        lane.lane_bytes,
        len(lane.data),
    )
    try:
        _deliver(board, channel, running, header, memoryview(lane.data))
    except BadFrame as error:
        board.end_channel(channel, f"malformed frame: {error}", EventKind.LOST)


def _hear(board: Board, channel: Channel, running: Running, fingerprint: int) -> None:
    """The peer has submitted the task's collective."""
    channel.account.give_back(running.collective)
    running.heard.add(channel.peer)
    if fingerprint != running.fingerprint:
        _mismatch(board, channel, running, fingerprint, 0)


def _mismatch(
    board: Board, channel: Channel, running: Running, fingerprint: int, lane_bytes: int
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
    board.events.append(Event(kind, channel.peer, running.handle, data))
    board.end(running, State.FAILED)
