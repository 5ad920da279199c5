"""Frames: what travels between two ranks, and how a stranger's bytes are refused.

A channel is a stream of frames, each a fixed header and its payload:

    DATA     bytes of a collective's lane, from `start` on
    READY    "I have submitted this collective": its data may come without limit
    CONTROL  a message for the other rank's Python side (reports, failures, re-forming)
    BYE      "I leave in good order"

A header is checked before any memory is reserved for what follows it.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = 0x504C
VERSION = 1
HEADER = struct.Struct("<HBBIQQQQII")
"""magic, version, kind, epoch, collective, fingerprint, start, lane_bytes, num_bytes,
reserved: 48 bytes, little-endian. `native/frames.h` says it again."""

SLICE_BYTES = 1 << 18
"""A DATA frame holds at most so many bytes; the next frame may be of another move."""

MESSAGE_BYTES = 1 << 17
"""A CONTROL frame holds at most so many bytes."""

EAGER_BYTES = 1 << 15
"""So much of a lane may be sent before the receiver has said READY ..."""

EARLY_BYTES = 1 << 20
"""... and so much in all between two ranks: what a receiver may have to set aside."""


class FrameKind(IntEnum):
    """What a frame carries."""

    DATA = 1
    READY = 2
    CONTROL = 3
    BYE = 4


@dataclass(frozen=True)
class Header:
    """A frame's header.

    Args:
        kind: see `FrameKind`.
        epoch: how often the group has been re-formed; older frames are dropped.
        collective: which move: a hash of its group, key and how often it was used.
        fingerprint: a hash of what the sender submitted under it.
        start: position of the payload in the lane, in bytes.
        lane_bytes: what the sender will send this rank in all for this collective.
        num_bytes: payload that follows.
    """

    kind: FrameKind
    epoch: int
    collective: int = 0
    fingerprint: int = 0
    start: int = 0
    lane_bytes: int = 0
    num_bytes: int = 0


class BadFrame(ValueError):
    """Bytes that are no frame of ours."""


def pack(header: Header) -> bytes:
    """A header as it travels."""
    return HEADER.pack(
        MAGIC,
        VERSION,
        header.kind,
        header.epoch,
        header.collective,
        header.fingerprint,
        header.start,
        header.lane_bytes,
        header.num_bytes,
        0,
    )


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """The header in `data`, checked.

    Raises:
        BadFrame: it is not one; says which field is wrong.
    """
    magic, version, kind, epoch, *numbers, num_bytes, _ = HEADER.unpack(data)
    collective, fingerprint, start, lane_bytes = numbers
    if magic != MAGIC or version != VERSION:
        raise BadFrame(f"magic {magic:#x}, version {version}: not a frame of placet's")
    if kind not in FrameKind.__members__.values():
        raise BadFrame(f"kind {kind}: no such kind of frame")
    most = {FrameKind.DATA: SLICE_BYTES, FrameKind.CONTROL: MESSAGE_BYTES}.get(kind, 0)
    if num_bytes > most:
        raise BadFrame(f"{num_bytes} bytes in a frame of kind {kind}, at most {most}")
    if kind == FrameKind.DATA and not 0 < start + num_bytes <= lane_bytes:
        raise BadFrame(f"bytes {start}+{num_bytes} of a lane of {lane_bytes}")
    return Header(
        FrameKind(kind), epoch, collective, fingerprint, start, lane_bytes, num_bytes
    )
