"""What one rank does in one step of a boxing: pack, move, unpack.

    payload = concat(tensors[piece.tensor][piece.box] for piece in pack)
    arrival = move(payload)
    out[piece.tensor][piece.box] = next elements of arrival, for piece in unpack
    out[new.tensor][new.box] = tensors[old.tensor][old.box], for old, new in keep

Several tensors that change placement alike travel in one payload: a bucket is simply a
step with more than one tensor.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from placet.boxing.moves import Move, MoveReduction
from placet.placement.layout import Box, Shape, num_elements


@dataclass(frozen=True)
class Piece:
    """A box of one local tensor, in local indices."""

    tensor: int
    box: Box


@dataclass(frozen=True)
class Lowered:
    """One step of a boxing on one rank.

    Args:
        src_shapes: the local shapes before; None where the rank holds no part.
        dst_shapes: the local shapes after; None where the rank gets no part.
        dtype: of the tensors.
        pack: what goes into the payload, in order.
        move: the transfer, or None for a step that needs none here.
        unpack: where the arrival goes, in order, in the *destination's* local tensors.
        keep: what is copied within this rank, as (piece of source, of destination).
        fill: what the rest of the outputs holds; None where they are covered.
        accumulate: how pieces that meet are joined; None where none meet.
        multiply, divide: the outputs are scaled by multiply / divide (averages).
    """

    src_shapes: tuple[Shape, ...] | None
    dst_shapes: tuple[Shape, ...] | None
    dtype: torch.dtype
    pack: tuple[Piece, ...] = ()
    move: Move | None = None
    unpack: tuple[Piece, ...] = ()
    keep: tuple[tuple[Piece, Piece], ...] = ()
    fill: float | int | None = None
    accumulate: MoveReduction | None = None
    multiply: int = 1
    divide: int = 1

    @cached_property
    def recipe(self) -> "Recipe":
        """How the pieces are cut and joined with few calls; worked out once."""
        return make_recipe(self)


@dataclass(frozen=True)
class Cut:
    """How one tensor's pieces of the payload are cut from it.

    Args:
        sizes: its pieces tile its flat elements in order, with these sizes; or None.
        boxes: the pieces' boxes, for when `sizes` is None.
    """

    sizes: tuple[int, ...] | None
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Join:
    """How one output is made from its pieces of the arrival.

    Args:
        places: which pieces of the arrival, in the output's order.
        boxes: where they go.
        tiles: they are the output's flat elements in order, and all of them.
    """

    places: tuple[int, ...]
    boxes: tuple[Box, ...]
    tiles: bool


@dataclass(frozen=True)
class Recipe:
    """The calls that pack and unpack one `Lowered`.

    Args:
        cuts: one per source tensor.
        order: for each piece of the payload (tensor, index among its pieces).
        arrival_sizes: elements of each piece of the arrival.
        joins: one per output.
        keeps: for each output its pieces of `keep`.
    """

    cuts: tuple[Cut, ...]
    order: tuple[tuple[int, int], ...]
    arrival_sizes: tuple[int, ...]
    joins: tuple[Join, ...]
    keeps: tuple[tuple[tuple[Piece, Piece], ...], ...]


def make_recipe(lowered: Lowered) -> Recipe:
    """Work out with which calls the pieces are cut and joined."""
    src_shapes, dst_shapes = lowered.src_shapes or (), lowered.dst_shapes or ()
    pieces: list[list[Box]] = [[] for _ in src_shapes]
    order = []
    for piece in lowered.pack:
        order.append((piece.tensor, len(pieces[piece.tensor])))
        pieces[piece.tensor].append(piece.box)
    joined: list[list[tuple[int, Box]]] = [[] for _ in dst_shapes]
    for place, piece in enumerate(lowered.unpack):
        joined[piece.tensor].append((place, piece.box))
    keeps: list[list[tuple[Piece, Piece]]] = [[] for _ in dst_shapes]
    for old, new in lowered.keep:
        keeps[new.tensor].append((old, new))
    return Recipe(
        cuts=tuple(
            Cut(_tiling(boxes, shape), tuple(boxes))
            for boxes, shape in zip(pieces, src_shapes, strict=True)
        ),
        order=tuple(order),
        arrival_sizes=tuple(num_elements(p.box) for p in lowered.unpack),
        joins=tuple(
            _join(found, shape, bool(kept))
            for found, shape, kept in zip(joined, dst_shapes, keeps, strict=True)
        ),
        keeps=tuple(map(tuple, keeps)),
    )


def _join(found: list[tuple[int, Box]], shape: Shape, kept: bool) -> Join:
    in_order = sorted(found, key=lambda item: [start for start, _ in item[1]])
    boxes = [box for _, box in in_order]
    tiles = not kept and _tiling(boxes, shape) is not None
    return Join(tuple(place for place, _ in in_order), tuple(boxes), tiles)


def _tiling(boxes: list[Box], shape: Shape) -> tuple[int, ...] | None:
    """The sizes of boxes that follow one another in a tensor's flat elements."""
    position = 0
    for box in boxes:
        if _flat_start(box, shape) != position:
            return None
        position += num_elements(box)
    return tuple(map(num_elements, boxes)) if position == math.prod(shape) else None


def _flat_start(box: Box, shape: Shape) -> int | None:
    """Where a box begins in the flat elements, or None if it is not one run."""
    start, stride, whole = 0, 1, True
    for (lo, hi), size in zip(reversed(box), reversed(shape), strict=True):
        if not whole and hi - lo != 1:
            return None
        whole = whole and hi - lo == size
        start += lo * stride
        stride *= size
    return start
