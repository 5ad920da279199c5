"""What each algorithm of an all-reduce sends and receives, in elements.

With n elements over p members, member i of the group (indices modulo p):

    ring          sends 2n - c[i] - c[i-1], receives 2n - c[i] - c[i+1];
                  c: the chunks                                 -> ring_elements
    direct        n + (p - 2) c[i] each way; c: even chunks     -> direct_elements
    exchange      (p - 1) n each way                            -> exchange_elements
    doubling      n each way in each round                      -> doubling_elements
    hierarchical  a ring in the block over all n, and a ring across the blocks over the
                  member's part of them                         -> hierarchical_elements

Each function gives (sent, received) of one member.
"""

from collections.abc import Sequence
from functools import lru_cache

_RING_SEGMENT_BYTES = 1 << 20


@lru_cache(maxsize=4096)
def ring_chunks(num_elements: int, itemsize: int, size: int) -> tuple[int, ...]:
    """How many elements each chunk of an all-reduce's ring has.

    gloo's rule (gloo/allreduce.cc, ring): equal segments of at most about 1 MiB, the
    same number in each chunk and at least two; only the last ones are short.
    """
    num_bytes = num_elements * itemsize
    limit = max(1, _RING_SEGMENT_BYTES // itemsize) * itemsize
    num_segments = max(-(-num_bytes // limit), 2 * size)
    per_chunk = -(-num_segments // size)
    segment_bytes = -(-num_bytes // (per_chunk * size))
    step = -(-segment_bytes // itemsize) * per_chunk
    starts = (min(i * step, num_elements) for i in range(size))
    return tuple(min(step, num_elements - start) for start in starts)


def even_chunks(num_elements: int, size: int) -> tuple[int, ...]:
    """As equal as can be; the first ones have one element more."""
    least, more = divmod(num_elements, size)
    return tuple(least + (i < more) for i in range(size))


def ring_elements(chunks: Sequence[int], me: int) -> tuple[int, int]:
    """A ring all-reduce: a reduce-scatter, then an all-gather, each of p - 1 steps.

    Each half moves all chunks but one past a rank. Member i begins with chunk i + 1.
    It sends all but chunk i, then all but chunk i - 1, and gets all but chunk i + 1,
    then all but chunk i.
    """
    twice = 2 * sum(chunks)
    before, after = chunks[me - 1], chunks[(me + 1) % len(chunks)]
    return twice - chunks[me] - before, twice - chunks[me] - after


def direct_elements(num_elements: int, size: int, me: int) -> tuple[int, int]:
    """A reduce-scatter and an all-gather, both between all pairs.

    Member i gives all chunks but its own away, then its own, reduced, to each other.
    """
    mine = even_chunks(num_elements, size)[me]
    moved = num_elements + (size - 2) * mine
    return moved, moved


def exchange_elements(num_elements: int, size: int) -> tuple[int, int]:
    """Everyone sends all it has to everyone."""
    return (size - 1) * num_elements, (size - 1) * num_elements


def doubling_core(size: int) -> tuple[int, int]:
    """The power of two that a recursive doubling runs over, and its rounds."""
    rounds = size.bit_length() - 1
    return 1 << rounds, rounds


def doubling_elements(num_elements: int, size: int, me: int) -> tuple[int, int]:
    """All n elements in each round.

    Where p is no power of two, the first members pair up: the even ones give all they
    have to the next, which runs the rounds for both and gives the result back.
    """
    core, rounds = doubling_core(size)
    if me >= 2 * (size - core):
        messages = rounds
    elif me % 2:
        messages = rounds + 1
    else:
        messages = 1
    return messages * num_elements, messages * num_elements


def find_in(blocks: Sequence[Sequence[int]], rank: int) -> tuple[int, int]:
    """Which block a rank is in, and its place in the block."""
    for b, block in enumerate(blocks):
        if rank in block:
            return b, block.index(rank)
    raise ValueError(f"rank {rank} is in none of the blocks {blocks}")


def hierarchical_elements(
    num_elements: int, blocks: Sequence[Sequence[int]], rank: int
) -> tuple[int, int]:
    """Member k of a block takes part k of the elements across the blocks."""
    b, k = find_in(blocks, rank)
    parts = even_chunks(num_elements, len(blocks[0]))
    inside = ring_elements(parts, k)
    across = ring_elements(even_chunks(parts[k], len(blocks)), b)
    return inside[0] + across[0], inside[1] + across[1]
