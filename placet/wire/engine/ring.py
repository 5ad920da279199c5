"""Rings: each member sends to its predecessor and receives from its successor.

With p members and chunks c[0..p-1], member i (indices modulo p) in step s = 0..p-2

    reduce-scatter   sends chunk i+1+s, gets chunk i+2+s and adds its own to it; so it
                     completes chunk i, as ((x[i-1] + x[i-2]) + ...) + x[i]
    all-gather       sends chunk i+s, gets chunk i+1+s, complete

An all-reduce is the one and then the other. Each send but a first one follows the
receive before it byte by byte, so a chunk is passed on while it still arrives.

# NOTE [What comes back was sent]
An all-reduce may be in place, and a send may be late; may a receive write over bytes
that still have to be sent? In the first half, no receive writes chunk i+1, the only one
that is sent from the payload. In the second half, chunk c arrives complete: it holds
what every member added. What this member added to byte b of it left in its own send of
byte b. So that send was done before byte b could come back. The same holds for what
the first half put into the result's chunk c and sent on from there. (Done means that
the bytes have left this member's buffers.)

Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", J. Parallel Distrib. Comput. 69 (2009); the direction and the chunks are
gloo's.
"""

from placet.boxing.moves import AllGather, AllReduce, ReduceScatter
from placet.wire.engine.pieces import Follows, Span, append, schedule_of, spans
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule


def all_reduce(move: AllReduce, rank: int) -> Schedule:
    """Reduce-scatter, then all-gather, both in the result."""
    group = move.group
    size, me = len(group), group.index(rank)
    dst, src = group[me - 1], group[(me + 1) % size]
    chunks = spans(move.chunks, move.dtype.itemsize)
    program: list[Instruction] = []
    ready = add_sums(program, group, me, chunks)
    for step in range(size - 1):
        start, length = chunks[(me + step) % size]
        given = Place(Buffer.OUT, start)
        append(program, Instruction(Kind.SEND, length, dst, given, follows=ready))
        start, length = chunks[(me + 1 + step) % size]
        got = Place(Buffer.OUT, start)
        ready = append(program, Instruction(Kind.RECEIVE, length, src, dst=got))
    return schedule_of(move, program)


def add_sums(
    program: list[Instruction], group: tuple[int, ...], me: int, chunks: list[Span]
) -> Follows:
    """The first half: member i gets chunk i of the sum, in the result.

    Returns:
        What must be done before that chunk may be sent on.
    """
    size = len(group)
    dst, src = group[me - 1], group[(me + 1) % size]
    ready: Follows = ()
    for step in range(size - 1):
        start, length = chunks[(me + 1 + step) % size]
        given = Place(Buffer.OUT if step else Buffer.PAYLOAD, start)
        append(program, Instruction(Kind.SEND, length, dst, given, follows=ready))
        start, length = chunks[(me + 2 + step) % size]
        own, sum_ = Place(Buffer.PAYLOAD, start), Place(Buffer.OUT, start)
        ready = append(
            program, Instruction(Kind.RECEIVE_REDUCE, length, src, own, sum_)
        )
    return ready


def all_gather(move: AllGather, rank: int) -> Schedule:
    """The second half alone; counts may differ."""
    group = move.group
    size, me = len(group), group.index(rank)
    dst, src = group[me - 1], group[(me + 1) % size]
    chunks = spans(move.counts, move.dtype.itemsize)
    program: list[Instruction] = []
    start, length = chunks[me]
    own = Place(Buffer.PAYLOAD, 0)
    append(program, Instruction(Kind.COPY, length, src=own, dst=_out(start)))
    ready: Follows = ()
    for step in range(size - 1):
        start, length = chunks[(me + step) % size]
        given = _out(start) if step else own
        append(program, Instruction(Kind.SEND, length, dst, given, follows=ready))
        start, length = chunks[(me + 1 + step) % size]
        ready = append(program, Instruction(Kind.RECEIVE, length, src, dst=_out(start)))
    return schedule_of(move, program)


def reduce_scatter(move: ReduceScatter, rank: int) -> Schedule:
    """The first half alone; counts may differ.

    The result has room for the last chunk only; the others pass through scratch memory,
    each in a place of its own, as a receive cannot wait until a place is free.
    """
    group = move.group
    size, me = len(group), group.index(rank)
    dst, src = group[me - 1], group[(me + 1) % size]
    chunks = spans(move.counts, move.dtype.itemsize)
    program: list[Instruction] = []
    ready: Follows = ()
    given = Place(Buffer.PAYLOAD, chunks[(me + 1) % size][0])
    scratch_bytes = 0
    for step in range(size - 1):
        _, length = chunks[(me + 1 + step) % size]
        append(program, Instruction(Kind.SEND, length, dst, given, follows=ready))
        start, length = chunks[(me + 2 + step) % size]
        given = Place(Buffer.SCRATCH, scratch_bytes)
        if step == size - 2:
            given = Place(Buffer.OUT, 0)
        else:
            scratch_bytes += length
        own = Place(Buffer.PAYLOAD, start)
        ready = append(
            program, Instruction(Kind.RECEIVE_REDUCE, length, src, own, given)
        )
    return schedule_of(move, program, scratch_bytes)


def _out(start: int) -> Place:
    return Place(Buffer.OUT, start)
