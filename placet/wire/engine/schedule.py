"""A collective as one rank's resumable program: instructions over byte ranges.

    SEND            hand bytes of a buffer to a peer
    RECEIVE         put bytes of a peer into a buffer
    RECEIVE_REDUCE  dst = reduce(src, bytes of a peer)
    REDUCE          dst = reduce(src, other)
    COPY            dst = src

An instruction may stop after any element and go on later: that is all that
preemption needs. It *follows* others byte by byte: with (j, start) in `follows` it may
have done at most done(j) - start bytes. Instructions that send to one peer form a lane,
done in order, as do those that receive from one peer; all else has no order.

# NOTE [Receives wait for nothing]
A receive follows nothing: whatever arrives for a collective that this rank has
submitted can be consumed at once, so the channel between two ranks never stands still
for it, and one channel can serve all collectives. (A result that must wait for several
peers is received into scratch memory and reduced by REDUCE.) See docs/decisions/0011.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from placet.boxing.moves import MoveReduction


class Buffer(IntEnum):
    """Where bytes lie: the caller's payload or result, or memory of the engine's."""

    PAYLOAD = 0
    OUT = 1
    SCRATCH = 2


class Kind(IntEnum):
    """What an instruction does."""

    SEND = 0
    RECEIVE = 1
    RECEIVE_REDUCE = 2
    REDUCE = 3
    COPY = 4


@dataclass(frozen=True)
class Place:
    """A position in a buffer, in bytes."""

    buffer: Buffer
    start: int


NOWHERE = Place(Buffer.PAYLOAD, 0)


@dataclass(frozen=True)
class Instruction:
    """One transfer or local operation; see the module's list.

    Args:
        kind: what it does.
        num_bytes: over how many bytes; whole elements.
        peer: the other rank of a transfer; -1 for local operations.
        src: what is sent, copied, or the first operand of a reduction.
        dst: where the result goes.
        other: the second operand of REDUCE.
        follows: (earlier or later instruction's index, start) pairs.
    """

    kind: Kind
    num_bytes: int
    peer: int = -1
    src: Place = NOWHERE
    dst: Place = NOWHERE
    other: Place = NOWHERE
    follows: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """What one rank does for one move.

    Args:
        instructions: see above; those of no bytes are left out.
        scratch_bytes: memory of the engine's that it needs.
        itemsize: bytes of an element.
        dtype_name: of the elements, as torch prints it ("torch.float32").
        reduction: how elements are joined, where they are.
    """

    instructions: tuple[Instruction, ...]
    scratch_bytes: int
    itemsize: int
    dtype_name: str
    reduction: MoveReduction = "sum"

    @cached_property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends."""
        return sum(i.num_bytes for i in self.instructions if i.kind is Kind.SEND)

    @cached_property
    def received_bytes(self) -> int:
        """Bytes that this rank receives."""
        receives = (Kind.RECEIVE, Kind.RECEIVE_REDUCE)
        return sum(i.num_bytes for i in self.instructions if i.kind in receives)
