"""What the rules share: the parts a change takes from and makes, and its arithmetic.

value of P(avg) over n ranks = sum of the terms / n            -> scale
a term that adds nothing: 0 for sums, the least value for max  -> identity
"""

import math

import torch

from placet.boxing.lowered import Piece
from placet.boxing.moves import MoveReduction
from placet.boxing.rule import Change
from placet.placement.layout import (
    Box,
    Layout,
    Shape,
    local_shape,
    num_elements,
    part_box,
    relative,
)
from placet.placement.placement import Partial, Reduction


def src_box(change: Change, tensor: int, rank: int) -> Box:
    """The box of a tensor that a rank holds before the change."""
    return part_box(change.shapes[tensor], change.src, rank)


def dst_box(change: Change, tensor: int, rank: int) -> Box:
    """The box of a tensor that a rank holds after the change."""
    return part_box(change.shapes[tensor], change.dst, rank)


def src_elements(change: Change, rank: int) -> int:
    """Elements of all tensors that a rank holds before the change."""
    boxes = (part_box(shape, change.src, rank) for shape in change.shapes)
    return sum(map(num_elements, boxes))


def dst_elements(change: Change, rank: int) -> int:
    """Elements of all tensors that a rank holds after the change."""
    boxes = (part_box(shape, change.dst, rank) for shape in change.shapes)
    return sum(map(num_elements, boxes))


def group(change: Change, rank: int) -> tuple[int, ...]:
    """The ranks that a rank changes placement with."""
    return change.src.mesh.group(change.axes, rank)


def local_shapes(
    shapes: tuple[Shape, ...], layout: Layout, rank: int
) -> tuple[Shape, ...] | None:
    """The local shapes of a rank, or None for a rank outside the mesh."""
    if rank not in layout.mesh.ranks:
        return None
    return tuple(local_shape(shape, layout, rank) for shape in shapes)


def whole(shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    """Each local tensor as one piece."""
    return tuple(
        Piece(tensor, tuple((0, size) for size in shape))
        for tensor, shape in enumerate(shapes)
        if math.prod(shape)
    )


def inside(box: Box, origin: Box) -> Box:
    """A box in the local indices of the tensor whose box is `origin`."""
    return tuple((s.start, s.stop) for s in relative(box, origin))


def move_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that travels: truth values go as bytes, which every wire reduces."""
    return torch.uint8 if dtype == torch.bool else dtype


def move_reduction(reduction: Reduction, dtype: torch.dtype) -> MoveReduction:
    """What the wire computes: averages are sums, and a sum of truth values is `or`."""
    if reduction in ("max", "min"):
        return reduction
    return "max" if dtype == torch.bool else "sum"


def identity(reduction: Reduction, dtype: torch.dtype) -> float | int:
    """The value that changes nothing in a reduction."""
    if reduction in ("sum", "avg"):
        return 0
    if dtype == torch.bool:
        return 0 if reduction == "max" else 1
    if dtype.is_floating_point:
        return -math.inf if reduction == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduction == "max" else limits.max


def scale(change: Change) -> tuple[int, int]:
    """(multiply, divide) that turn a sum of the src's terms into one of the dst's."""
    multiply, divide = num_averaged(change.dst), num_averaged(change.src)
    common = math.gcd(multiply, divide)
    return multiply // common, divide // common


def num_averaged(layout: Layout) -> int:
    """Over how many terms a layout averages; 1 where no axis is P(avg)."""
    pairs = zip(layout.placements, layout.mesh.sizes, strict=True)
    return math.prod(n for p, n in pairs if p == Partial("avg"))


def reduction_of(change: Change) -> Reduction:
    """The reduction of the partial axes of a change."""
    found = change.src.reduction or change.dst.reduction
    assert found is not None, f"{change!r} has no partial axis"
    return found
