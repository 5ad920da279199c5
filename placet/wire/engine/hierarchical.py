"""An all-reduce in three stages, for hosts whose uplinks are slow.

With B blocks (the members on one host) of m members, n elements, member k of block b:

    1. reduce-scatter in the block: it holds part k of the block's sum, n / m elements
    2. all-reduce of part k across the blocks, among the members k of each
    3. all-gather in the block: parts go around

A host's uplink carries 2n (B - 1) / B, all its members together; a ring over all
members in order carries nearly 2n there, whatever B is. With B = 2 that is n against
1.5 n for two members a host, and nearly 2 n for many.

Every stage is a ring. Part k is cut into B pieces, which stage 2 completes one by one
(piece b first, then b + 1, ...), and stage 3 passes on each as soon as it is complete.

In stage 2 the block's sum, which a receive would have to be added to, may be late, and
no receive may wait for it; so it is received into scratch memory and added by REDUCE.

Receives that write over the result, in place or not, are safe as in ring.py, NOTE
[What comes back was sent]: whatever comes complete in stages 2 and 3 holds what this
member sent of the same bytes before, in stages 1 and 2.

Source: the idea is old (M. Cho et al., "BlueConnect", SysML 2019, takes it to more
levels); differs in the pieces that tie the stages together.
"""

from placet.boxing.algorithm_bytes import even_chunks, find_in
from placet.boxing.moves import AllReduce
from placet.wire.engine.pieces import Follows, Span, append, schedule_of, spans
from placet.wire.engine.ring import add_sums
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule


def all_reduce(move: AllReduce, rank: int) -> Schedule:
    """The three stages."""
    blocks, itemsize = move.blocks, move.dtype.itemsize
    b, k = find_in(blocks, rank)
    parts = even_chunks(move.num_elements, len(blocks[b]))
    part_spans = spans(parts, itemsize)
    pieces = [
        spans(even_chunks(count, len(blocks)), itemsize, start)
        for count, (start, _) in zip(parts, part_spans, strict=True)
    ]
    program: list[Instruction] = []
    ready = add_sums(program, blocks[b], k, part_spans)
    across = tuple(block[k] for block in blocks)
    start = part_spans[k][0]
    scratch_bytes, complete = _across(program, across, b, pieces[k], (start, ready))
    order = [(b + i) % len(blocks) for i in range(len(blocks))]
    in_order = [[piece[i] for i in order] for piece in pieces]
    _gather_in_block(program, blocks[b], k, in_order, complete)
    return schedule_of(move, program, scratch_bytes)


def _across(
    program: list[Instruction],
    group: tuple[int, ...],
    b: int,
    pieces: list[Span],
    block_sum: tuple[int, Follows],
) -> tuple[int, list[Follows]]:
    """A ring all-reduce of this member's part of the block's sum.

    Args:
        block_sum: where the part starts in the result, and what it follows.

    Returns:
        The bytes of scratch memory, and what each piece follows to be complete, in the
        order b, b + 1, ...
    """
    size = len(group)
    dst, src = group[b - 1], group[(b + 1) % size]
    part_start, part_ready = block_sum
    scratch_bytes = 0

    def summed(start: int) -> Follows:
        return tuple((i, start - part_start) for i, _ in part_ready)

    ready: Follows = summed(pieces[(b + 1) % size][0])
    for step in range(size - 1):
        start, length = pieces[(b + 1 + step) % size]
        given = Place(Buffer.OUT, start)
        append(program, Instruction(Kind.SEND, length, dst, given, follows=ready))
        start, length = pieces[(b + 2 + step) % size]
        total, term = Place(Buffer.OUT, start), Place(Buffer.SCRATCH, scratch_bytes)
        scratch_bytes += length
        arrived = append(program, Instruction(Kind.RECEIVE, length, src, dst=term))
        reduce = Instruction(
            Kind.REDUCE, length, -1, total, total, term, arrived + summed(start)
        )
        ready = append(program, reduce)
    complete = [ready]
    for step in range(size - 1):
        start, length = pieces[(b + step) % size]
        given = Place(Buffer.OUT, start)
        append(program, Instruction(Kind.SEND, length, dst, given, follows=ready))
        start, length = pieces[(b + 1 + step) % size]
        got = Place(Buffer.OUT, start)
        ready = append(program, Instruction(Kind.RECEIVE, length, src, dst=got))
        complete.append(ready)
    return scratch_bytes, complete


def _gather_in_block(
    program: list[Instruction],
    block: tuple[int, ...],
    k: int,
    pieces: list[list[Span]],
    complete: list[Follows],
) -> None:
    # The second half of `ring.all_reduce`, over the block, piece by piece.
    size = len(block)
    dst, src = block[k - 1], block[(k + 1) % size]
    for step in range(size - 1):
        for (start, length), ready in zip(
            pieces[(k + step) % size], complete, strict=True
        ):
            given = Place(Buffer.OUT, start)
            append(program, Instruction(Kind.SEND, length, dst, given, follows=ready))
        complete = []
        for start, length in pieces[(k + 1 + step) % size]:
            got = Place(Buffer.OUT, start)
            receive = Instruction(Kind.RECEIVE, length, src, dst=got)
            complete.append(append(program, receive))
