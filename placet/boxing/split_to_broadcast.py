"""Split -> Broadcast: an all-gather.

Each of the num_ranks ranks holds one part and receives the other num_ranks - 1, that
is (num_ranks - 1) / num_ranks of the tensor where parts are even.

Source: OneFlow (arXiv:2110.15032), boxing costs; there summed over the ranks.
"""

from placet.boxing.counts import held
from placet.boxing.lowered import Lowered, Piece
from placet.boxing.moves import AllGather
from placet.boxing.parts import (
    dst_box,
    group,
    inside,
    local_shapes,
    move_dtype,
    src_box,
    src_elements,
    whole,
)
from placet.boxing.rule import Change, Rule
from placet.placement.layout import num_elements
from placet.placement.placement import Broadcast, Placement, Split


def applies(src: Placement, dst: Placement) -> bool:
    """Whether a split becomes whole."""
    return isinstance(src, Split) and isinstance(dst, Broadcast)


def received_bytes(change: Change) -> int:
    """Bytes received by all ranks: each lacks all but its part."""
    lacking = held(change.shapes, change.dst) - held(change.shapes, change.src)
    return lacking * change.dtype.itemsize


def lower(change: Change, rank: int) -> Lowered:
    """Give this rank's part, get all parts, each to its own place."""
    members = group(change, rank)
    counts = tuple(src_elements(change, member) for member in members)
    src_shapes = local_shapes(change.shapes, change.src, rank)
    assert src_shapes is not None
    boxes = [
        (t, src_box(change, t, member), dst_box(change, t, rank))
        for member in members
        for t in range(len(change.shapes))
    ]
    return Lowered(
        src_shapes=src_shapes,
        dst_shapes=local_shapes(change.shapes, change.dst, rank),
        dtype=change.dtype,
        pack=whole(src_shapes),
        move=AllGather(members, counts, move_dtype(change.dtype)),
        unpack=tuple(
            Piece(t, inside(part, origin))
            for t, part, origin in boxes
            if num_elements(part)
        ),
    )


RULE = Rule("split-to-broadcast", applies, received_bytes, lower)
