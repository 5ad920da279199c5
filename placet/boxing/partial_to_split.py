"""Partial -> Split: a reduce-scatter.

Each element is the reduction of num_ranks terms and ends on one rank, so it takes
num_ranks - 1 transfers.

Source: OneFlow (arXiv:2110.15032), boxing costs; there summed over the ranks.
"""

from placet.boxing.counts import group_size, held
from placet.boxing.lowered import Lowered, Piece
from placet.boxing.moves import ReduceScatter
from placet.boxing.parts import (
    dst_box,
    dst_elements,
    group,
    inside,
    local_shapes,
    move_dtype,
    move_reduction,
    reduction_of,
    scale,
    src_box,
    whole,
)
from placet.boxing.rule import Change, Rule
from placet.placement.layout import num_elements
from placet.placement.placement import Partial, Placement, Split


def applies(src: Placement, dst: Placement) -> bool:
    """Whether terms become a slice of their reduction."""
    return isinstance(src, Partial) and isinstance(dst, Split)


def received_bytes(change: Change) -> int:
    """Bytes received by all ranks: num_ranks - 1 terms for each element of a part."""
    others = group_size(change.src, change.axes) - 1
    elements = held(change.shapes, change.dst)
    return others * elements * change.dtype.itemsize


def lower(change: Change, rank: int) -> Lowered:
    """Give each member the terms of its part, get this rank's part, reduced."""
    members = group(change, rank)
    counts = tuple(dst_elements(change, member) for member in members)
    dst_shapes = local_shapes(change.shapes, change.dst, rank)
    assert dst_shapes is not None
    boxes = [
        (t, dst_box(change, t, member), src_box(change, t, rank))
        for member in members
        for t in range(len(change.shapes))
    ]
    reduction = move_reduction(reduction_of(change), change.dtype)
    multiply, divide = scale(change)
    return Lowered(
        src_shapes=local_shapes(change.shapes, change.src, rank),
        dst_shapes=dst_shapes,
        dtype=change.dtype,
        pack=tuple(
            Piece(t, inside(part, origin))
            for t, part, origin in boxes
            if num_elements(part)
        ),
        move=ReduceScatter(members, counts, move_dtype(change.dtype), reduction),
        unpack=whole(dst_shapes),
        multiply=multiply,
        divide=divide,
    )


RULE = Rule("partial-to-split", applies, received_bytes, lower)
