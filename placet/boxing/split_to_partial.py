"""Split -> Partial: each rank pads its slice, and nothing moves.

The padding is what changes nothing: zeros for a sum, the least value for a maximum. A
slice that becomes a term of an average is scaled by the number of ranks.
"""

from placet.boxing.lowered import Lowered, Piece
from placet.boxing.parts import (
    dst_box,
    identity,
    inside,
    local_shapes,
    reduction_of,
    scale,
    src_box,
)
from placet.boxing.rule import Change, Rule
from placet.placement.layout import num_elements
from placet.placement.placement import Partial, Placement, Split


def applies(src: Placement, dst: Placement) -> bool:
    """Whether slices become terms."""
    return isinstance(src, Split) and isinstance(dst, Partial)


def received_bytes(change: Change) -> int:
    """No bytes: nothing moves."""
    del change
    return 0


def lower(change: Change, rank: int) -> Lowered:
    """Put this rank's slice into a term that adds nothing elsewhere."""
    keep = []
    for tensor in range(len(change.shapes)):
        old, new = src_box(change, tensor, rank), dst_box(change, tensor, rank)
        if num_elements(old):
            pieces = Piece(tensor, inside(old, old)), Piece(tensor, inside(old, new))
            keep.append(pieces)
    multiply, divide = scale(change)
    return Lowered(
        src_shapes=local_shapes(change.shapes, change.src, rank),
        dst_shapes=local_shapes(change.shapes, change.dst, rank),
        dtype=change.dtype,
        keep=tuple(keep),
        fill=identity(reduction_of(change), change.dtype),
        multiply=multiply,
        divide=divide,
    )


RULE = Rule("split-to-partial", applies, received_bytes, lower)
