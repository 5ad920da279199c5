"""Partial -> Broadcast: an all-reduce.

Each element is the reduction of num_ranks terms (num_ranks - 1 transfers) that each
rank then needs (num_ranks - 1 more).

Source: OneFlow (arXiv:2110.15032), boxing costs; there summed over the ranks.
"""

from placet.boxing.counts import group_size, held
from placet.boxing.lowered import Lowered
from placet.boxing.moves import AllReduce
from placet.boxing.parts import (
    group,
    local_shapes,
    move_dtype,
    move_reduction,
    reduction_of,
    scale,
    src_elements,
    whole,
)
from placet.boxing.rule import Change, Rule
from placet.placement.placement import Broadcast, Partial, Placement


def applies(src: Placement, dst: Placement) -> bool:
    """Whether terms become their reduction, whole on each rank."""
    return isinstance(src, Partial) and isinstance(dst, Broadcast)


def received_bytes(change: Change) -> int:
    """Bytes received by all ranks: 2 (num_ranks - 1) for each element of a group."""
    num_ranks = group_size(change.src, change.axes)
    elements = held(change.shapes, change.src) // num_ranks
    return 2 * (num_ranks - 1) * elements * change.dtype.itemsize


def lower(change: Change, rank: int) -> Lowered:
    """Give this rank's term, get the reduction."""
    shapes = local_shapes(change.shapes, change.src, rank)
    assert shapes is not None
    multiply, divide = scale(change)
    return Lowered(
        src_shapes=shapes,
        dst_shapes=shapes,
        dtype=change.dtype,
        pack=whole(shapes),
        move=AllReduce(
            group(change, rank),
            src_elements(change, rank),
            move_dtype(change.dtype),
            move_reduction(reduction_of(change), change.dtype),
        ),
        unpack=whole(shapes),
        multiply=multiply,
        divide=divide,
    )


RULE = Rule("partial-to-broadcast", applies, received_bytes, lower)
