"""What ranks say to the one that orders their launches, and what it says to them.

to the sequencer     define     a move, once for each (key, move); then it is a number
                     announce   20 bytes: which, the submission's number, priority
                     done       8 bytes: a chunk of a submission
                     expire     16 bytes: a submission that waited for too long
to the members       launch     8 bytes for each launch, many in one message
                     fail       a submission, and why
"""

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from placet.errors import MoveMismatch, PeerLost, WireError, WireTimeout

TO_SEQUENCER = "order: to the sequencer"
LAUNCH = "order: launch"
FAIL = "order: fail"

_KINDS: dict[str, type[WireError]] = {
    kind.__name__: kind for kind in (WireTimeout, MoveMismatch, PeerLost)
}


class _Kind(IntEnum):
    DEFINE = 0
    ANNOUNCE = 1
    DONE = 2
    EXPIRE = 3


@dataclass(frozen=True)
class Define:
    """What a rank means by a number.

    Args:
        name: the number.
        group, key, text, fingerprint, num_chunks: see `sequencer.Announcement`.
    """

    name: int
    group: tuple[int, ...]
    key: str
    text: str
    fingerprint: int
    num_chunks: int


@dataclass(frozen=True)
class Announce:
    """A submission of what was defined as `name`."""

    name: int
    number: int
    priority: int


@dataclass(frozen=True)
class Done:
    """A chunk of a submission is done."""

    number: int


@dataclass(frozen=True)
class Expire:
    """A submission was not launched in so many seconds."""

    number: int
    seconds: float


Said: TypeAlias = Define | Announce | Done | Expire

_HEADS = {
    _Kind.DEFINE: struct.Struct("<BIQI"),
    _Kind.ANNOUNCE: struct.Struct("<BIQq"),
    _Kind.DONE: struct.Struct("<BQ"),
    _Kind.EXPIRE: struct.Struct("<BQd"),
}


def pack(said: Said) -> bytes:
    """A message to the sequencer."""
    match said:
        case Define():
            head = _HEADS[_Kind.DEFINE].pack(
                _Kind.DEFINE, said.name, said.fingerprint, said.num_chunks
            )
            return head + json.dumps([said.group, said.key, said.text]).encode()
        case Announce():
            return _HEADS[_Kind.ANNOUNCE].pack(
                _Kind.ANNOUNCE, said.name, said.number, said.priority
            )
        case Done():
            return _HEADS[_Kind.DONE].pack(_Kind.DONE, said.number)
        case Expire():
            return _HEADS[_Kind.EXPIRE].pack(_Kind.EXPIRE, said.number, said.seconds)


def unpack(message: bytes) -> Said:
    """What `pack` was given.

    Raises:
        ValueError, struct.error: it is no such message.
    """
    kind = _Kind(message[0])
    head = _HEADS[kind]
    _, *values = head.unpack(message[: head.size])
    match kind:
        case _Kind.DEFINE:
            group, key, text = json.loads(message[head.size :])
            name, fingerprint, num_chunks = values
            return Define(name, tuple(group), key, text, fingerprint, num_chunks)
        case _Kind.ANNOUNCE:
            return Announce(*values)
        case _Kind.DONE:
            return Done(*values)
        case _Kind.EXPIRE:
            return Expire(*values)


def pack_numbers(numbers: list[int]) -> bytes:
    """Submissions that a rank is to launch, in order."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def unpack_numbers(message: bytes) -> list[int]:
    """What `pack_numbers` was given."""
    return list(struct.unpack(f"<{len(message) // 8}Q", message))


def pack_failure(number: int, kind: str, text: str) -> bytes:
    """A submission fails."""
    return json.dumps([number, kind, text]).encode()


def unpack_failure(message: bytes) -> tuple[int, WireError]:
    """The submission's number, and the error to raise."""
    number, kind, text = json.loads(message)
    return number, _KINDS.get(kind, WireError)(text)
