"""A large move as several smaller ones in a row, which send the same bytes.

Between two of them something more urgent can go first, on a carrier that cannot stop in
the middle of a move (NCCL, gloo). Only moves whose elements go each their own way are
cut: all-reduces by the ring, and broadcasts.

# NOTE [The same bytes]
A broadcast's bytes are proportional to its elements: any cut will do. In a ring over
p members, member i sends 2n - c[i] - c[i-1] elements, where c are the ring's chunks:
p of s each, the last one short by d, so n = p s - d. The pieces send the same in all if
their s and d add up to those of the whole. A ring rounds s up to its number of
segments, which is even for pieces of up to 2p MiB. So

    sum of s_k = s, each s_k even; sum of d_k = d, each d_k < 2p  -> _cut_ring

and where s is odd, one piece has 3 segments, as one a little over 2p MiB has. What
cannot be cut so stays whole: `chunks` compares the bytes of all members before it
answers.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from placet.boxing.algorithm_bytes import even_chunks, ring_chunks
from placet.boxing.moves import AllReduce, BroadcastFrom, Move

CHUNK_BYTES = 4 << 20
"""About so many bytes of the payload are in each piece."""

_SEGMENT_BYTES = 1 << 20
"""Of a ring's segment, at most; a piece of up to twice the group size has two each."""


@lru_cache(maxsize=4096)
def chunks(move: Move, chunk_bytes: int = CHUNK_BYTES) -> tuple[Move, ...]:
    """What a move is launched as: pieces that follow one another in its payload.

    Each rank sends and receives as many bytes in all of them as in the whole move.

        chunks(AllReduce((0, 1), 4 << 20, torch.float32))     # 4 of 4 MiB each

    Args:
        move: any move.
        chunk_bytes: about how large a piece may be, in bytes of the payload.

    Returns:
        The pieces; the move itself where it is small, or cannot be cut.
    """
    if not isinstance(move, AllReduce | BroadcastFrom) or len(move.group) < 2:
        return (move,)
    if move.num_elements * move.dtype.itemsize <= chunk_bytes:
        return (move,)
    if isinstance(move, BroadcastFrom):
        num = -(-move.num_elements * move.dtype.itemsize // chunk_bytes)
        sizes: Sequence[int] = even_chunks(move.num_elements, num)
        return tuple(
            BroadcastFrom(move.group, move.root, size, move.dtype) for size in sizes
        )
    if move.algorithm != "ring":
        return (move,)
    sizes = _cut_ring(move, chunk_bytes)
    if not sizes or not _same_bytes(move, sizes):
        return (move,)
    return tuple(
        AllReduce(move.group, size, move.dtype, move.reduction) for size in sizes
    )


def slices(pieces: Sequence[Move]) -> list[slice]:
    """Where each piece of `chunks` lies in the payload, and in the result."""
    sizes = [
        piece.num_elements
        for piece in pieces
        if isinstance(piece, AllReduce | BroadcastFrom)
    ]
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _cut_ring(move: AllReduce, chunk_bytes: int) -> list[int]:
    """The pieces' numbers of elements; [] where no cut is known."""
    size, itemsize = len(move.group), move.dtype.itemsize
    step = move.chunks[0]
    short = size * step - move.num_elements
    steps: list[int] = []
    if step % 2:
        odd = 2 * _SEGMENT_BYTES // itemsize + 2  # a little more than two segments
        odd += (3 - odd) % 6  # the next odd multiple of 3
        steps.append(odd)
    halves = (step - sum(steps)) // 2
    if halves < 0:
        return []
    most_bytes = min(chunk_bytes, 2 * size * _SEGMENT_BYTES)
    # No piece may be short by 2p or more, so a large d needs more pieces.
    num_for_bytes = -(-2 * halves * size * itemsize // most_bytes)
    num_for_short = -(-short // (2 * size - 1)) - len(steps)
    num = min(max(num_for_bytes, num_for_short), halves)
    if num > 0:
        steps += [2 * half for half in even_chunks(halves, num)]
    shorts = even_chunks(short, len(steps))
    return [size * s - d for s, d in zip(steps, shorts, strict=True)]


def _same_bytes(move: AllReduce, sizes: Sequence[int]) -> bool:
    """Whether the rings of the pieces add up to that of the whole."""
    if min(sizes) < 1 or sum(sizes) != move.num_elements:
        return False
    pieces = [ring_chunks(n, move.dtype.itemsize, len(move.group)) for n in sizes]
    return tuple(sum(of_member) for of_member in zip(*pieces, strict=True)) == (
        move.chunks
    )
