"""Direct moves: each pair of members exchanges what it needs, once.

Member i sends to i + 1 first, then to i + 2, and so on, so that not all send to one.

An all-reduce may be in place: what it receives over chunk c of its payload is the sum
of that chunk, which holds the term that it sent (NOTE [What comes back was sent] in
ring.py).
"""

from placet.boxing.algorithm_bytes import even_chunks
from placet.boxing.moves import AllGather, AllReduce, AllToAll, ReduceScatter
from placet.wire.engine.pieces import (
    Follows,
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
    program: list[Instruction] = []
    me = move.group.index(rank)
    parts = spans(move.counts, move.dtype.itemsize)
    _add_sums(program, move.group, me, parts, 0)
    return schedule_of(move, program, (len(parts) - 1) * parts[me][1])


def all_reduce(move: AllReduce, rank: int) -> Schedule:
    """A reduce-scatter; then each member gives each other its sum, byte by byte."""
    group, itemsize = move.group, move.dtype.itemsize
    size, me = len(group), group.index(rank)
    chunks = spans(even_chunks(move.num_elements, size), itemsize)
    start, length = chunks[me]
    program: list[Instruction] = []
    ready = _add_sums(program, group, me, chunks, start)
    for distance in range(1, size):
        peer, src = group[(me + distance) % size], Place(Buffer.OUT, start)
        append(program, Instruction(Kind.SEND, length, peer, src, follows=ready))
        i = (me - distance) % size
        dst = Place(Buffer.OUT, chunks[i][0])
        append(program, Instruction(Kind.RECEIVE, chunks[i][1], group[i], dst=dst))
    return schedule_of(move, program, (size - 1) * length)


def _add_sums(
    program: list[Instruction],
    group: tuple[int, ...],
    me: int,
    parts: list[Span],
    start: int,
) -> Follows:
    """Each member gives each other its term; this one's part is summed, at `start`.

    Returns:
        What must be done before that sum may be sent on.
    """
    size = len(group)
    for distance in range(1, size):
        i = (me + distance) % size
        src = Place(Buffer.PAYLOAD, parts[i][0])
        append(program, Instruction(Kind.SEND, parts[i][1], group[i], src))
    own = Place(Buffer.PAYLOAD, parts[me][0])
    return gather_and_reduce(program, group, me, own, parts[me][1], start=start)
