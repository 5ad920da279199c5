"""Memory of a wire's own that a move takes while it runs.

    all-reduce      ring 0;  direct (p - 1) c[i];  exchange (p - 1) n;  doubling n a
                    round, and one more where a member folds another in;  hierarchical
                    the member's part of its block's sum, less one piece
    reduce-scatter  direct (p - 1) times what the member gets;  ring: all but the chunk
                    that it gets and the one that it first sends
    all others      0

As placet's engine runs them; a test holds these figures against its schedules. Other
wires take more or less: gloo copies what it gathers, NCCL has buffers of a fixed size.
"""

from placet.boxing.algorithm_bytes import doubling_core, even_chunks, find_in
from placet.boxing.moves import AllReduce, Move, ReduceScatter


def scratch_bytes(move: Move, rank: int) -> int:
    """Bytes that a rank's wire takes for a move, besides payload and arrival."""
    size = len(move.group)
    if size == 1:
        return 0
    me, itemsize = move.group.index(rank), move.dtype.itemsize
    if isinstance(move, AllReduce):
        return _all_reduce_elements(move, rank) * itemsize
    if isinstance(move, ReduceScatter):
        if move.algorithm == "direct":
            return (size - 1) * move.counts[me] * itemsize
        others = sum(move.counts) - move.counts[me] - move.counts[(me + 1) % size]
        return others * itemsize
    return 0


def _all_reduce_elements(move: AllReduce, rank: int) -> int:
    size, me = len(move.group), move.group.index(rank)
    match move.algorithm:
        case "ring":
            return 0
        case "direct":
            return (size - 1) * even_chunks(move.num_elements, size)[me]
        case "exchange":
            return (size - 1) * move.num_elements
        case "doubling":
            core, rounds = doubling_core(size)
            folded = 2 * (size - core)
            if me >= folded:
                return rounds * move.num_elements
            return (rounds + 1) * move.num_elements if me % 2 else 0
        case "hierarchical":
            b, k = find_in(move.blocks, rank)
            part = even_chunks(move.num_elements, len(move.blocks[b]))[k]
            pieces = even_chunks(part, len(move.blocks))
            return part - pieces[(b + 1) % len(move.blocks)]
