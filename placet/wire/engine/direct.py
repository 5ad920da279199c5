"""Direct moves: each pair of members exchanges what it needs, once.

Member i sends to i + 1 first, then to i + 2, and so on, so that not all send to one.
"""

from placet.boxing.moves import AllGather, AllToAll, ReduceScatter
from placet.wire.engine.pieces import (
    Span,
    append,
    gather_and_reduce,
    schedule_of,
    spans,
)
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule


def all_gather(move: AllGather, rank: int) -> Schedule:
    """Each member gives its elements to each other."""
    size, me = len(move.group), move.group.index(rank)
    to = [(0, move.counts[me] * move.dtype.itemsize)] * size
    come = spans(move.counts, move.dtype.itemsize)
    return schedule_of(move, _pairs(move.group, me, to, come))


def all_to_all(move: AllToAll, rank: int) -> Schedule:
    """Each member gives each other what is for it."""
    itemsize, me = move.dtype.itemsize, move.group.index(rank)
    to = spans(move.sends(rank), itemsize)
    come = spans(move.receives(rank), itemsize)
    return schedule_of(move, _pairs(move.group, me, to, come))


def _pairs(
    group: tuple[int, ...],
    me: int,
    to: list[Span],
    come: list[Span],
) -> list[Instruction]:
    program: list[Instruction] = []
    src, dst = Place(Buffer.PAYLOAD, to[me][0]), Place(Buffer.OUT, come[me][0])
    append(program, Instruction(Kind.COPY, to[me][1], src=src, dst=dst))
    for distance in range(1, len(group)):
        i = (me + distance) % len(group)
        src = Place(Buffer.PAYLOAD, to[i][0])
        append(program, Instruction(Kind.SEND, to[i][1], group[i], src))
        i = (me - distance) % len(group)
        dst = Place(Buffer.OUT, come[i][0])
        append(program, Instruction(Kind.RECEIVE, come[i][1], group[i], dst=dst))
    return program


def reduce_scatter(move: ReduceScatter, rank: int) -> Schedule:
    """Each member gives each other its term; they are added in group order."""
    group = move.group
    size, me = len(group), group.index(rank)
    parts = spans(move.counts, move.dtype.itemsize)
    start, length = parts[me]
    program: list[Instruction] = []
    for distance in range(1, size):
        i = (me + distance) % size
        src = Place(Buffer.PAYLOAD, parts[i][0])
        append(program, Instruction(Kind.SEND, parts[i][1], group[i], src))
    own = Place(Buffer.PAYLOAD, start)
    scratch_bytes = gather_and_reduce(program, group, me, own, length)
    return schedule_of(move, program, scratch_bytes)
