"""P(sum) <-> P(avg): each rank scales its own term, and nothing moves."""

from placet.boxing.lowered import Lowered
from placet.boxing.parts import local_shapes, scale, whole
from placet.boxing.rule import Change, Rule
from placet.placement.placement import Partial, Placement

LINEAR = ("sum", "avg")
"""Reductions whose terms differ by a factor only."""


def applies(src: Placement, dst: Placement) -> bool:
    """Whether terms of a sum become those of an average, or the other way round."""
    return (
        isinstance(src, Partial)
        and isinstance(dst, Partial)
        and src != dst
        and src.reduction in LINEAR
        and dst.reduction in LINEAR
    )


def received_bytes(change: Change) -> int:
    """No bytes: nothing moves."""
    del change
    return 0


def lower(change: Change, rank: int) -> Lowered:
    """Scale this rank's term by the number of terms."""
    shapes = local_shapes(change.shapes, change.src, rank)
    assert shapes is not None
    multiply, divide = scale(change)
    return Lowered(
        src_shapes=shapes,
        dst_shapes=shapes,
        dtype=change.dtype,
        keep=tuple((piece, piece) for piece in whole(shapes)),
        multiply=multiply,
        divide=divide,
    )


RULE = Rule("partial-to-partial", applies, received_bytes, lower)
