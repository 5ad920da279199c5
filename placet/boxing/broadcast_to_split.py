"""Broadcast -> Split: each rank keeps its slice, and nothing moves."""

from placet.boxing.lowered import Lowered, Piece
from placet.boxing.parts import dst_box, inside, local_shapes, src_box
from placet.boxing.rule import Change, Rule
from placet.placement.layout import num_elements
from placet.placement.placement import Broadcast, Placement, Split


def applies(src: Placement, dst: Placement) -> bool:
    """Whether a whole value becomes slices."""
    return isinstance(src, Broadcast) and isinstance(dst, Split)


def received_bytes(change: Change) -> int:
    """No bytes: nothing moves."""
    del change
    return 0


def lower(change: Change, rank: int) -> Lowered:
    """Keep this rank's slice."""
    keep = []
    for tensor in range(len(change.shapes)):
        new, old = dst_box(change, tensor, rank), src_box(change, tensor, rank)
        if num_elements(new):
            pieces = Piece(tensor, inside(new, old)), Piece(tensor, inside(new, new))
            keep.append(pieces)
    return Lowered(
        src_shapes=local_shapes(change.shapes, change.src, rank),
        dst_shapes=local_shapes(change.shapes, change.dst, rank),
        dtype=change.dtype,
        keep=tuple(keep),
    )


RULE = Rule("broadcast-to-split", applies, received_bytes, lower)
