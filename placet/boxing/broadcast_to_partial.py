"""Broadcast -> Partial: nothing moves.

P(sum)             the first rank keeps the value, the others hold zeros
P(avg), P(max|min) each rank keeps the value: the average of equals is the value
"""

from placet.boxing.lowered import Lowered
from placet.boxing.parts import group, identity, local_shapes, reduction_of, whole
from placet.boxing.rule import Change, Rule
from placet.placement.placement import Broadcast, Partial, Placement


def applies(src: Placement, dst: Placement) -> bool:
    """Whether a whole value becomes terms."""
    return isinstance(src, Broadcast) and isinstance(dst, Partial)


def received_bytes(change: Change) -> int:
    """No bytes: nothing moves."""
    del change
    return 0


def lower(change: Change, rank: int) -> Lowered:
    """Keep the value, or hold zeros."""
    shapes = local_shapes(change.shapes, change.src, rank)
    assert shapes is not None
    reduction = reduction_of(change)
    kept = reduction != "sum" or group(change, rank)[0] == rank
    return Lowered(
        src_shapes=shapes,
        dst_shapes=shapes,
        dtype=change.dtype,
        keep=tuple((piece, piece) for piece in whole(shapes)) if kept else (),
        fill=None if kept else identity(reduction, change.dtype),
    )


RULE = Rule("broadcast-to-partial", applies, received_bytes, lower)
