"""What one rank does in one step of a boxing: pack, move, unpack.

    payload = concat(tensors[piece.tensor][piece.box] for piece in pack)
    arrival = move(payload)                    (payload itself where move is None)
    out[piece.tensor][piece.box] = next elements of arrival, for piece in unpack

Several tensors that change placement alike travel in one payload: a bucket is simply a
step with more than one tensor.
"""

from dataclasses import dataclass

from placet.boxing.moves import Move
from placet.placement.layout import Box


@dataclass(frozen=True)
class Piece:
    """A box of one local tensor, in local indices."""

    tensor: int
    box: Box


@dataclass(frozen=True)
class Lowered:
    """One step of a boxing on one rank.

    Args:
        pack: what goes into the payload, in order.
        move: the transfer, or None for a step that needs none.
        unpack: where the arrival goes, in order, in the *destination's* local tensors.
        fill: what the rest of the outputs holds; None where `unpack` covers them.
        accumulate: add arrivals that meet instead of writing them (halo adjoints).
        divide: divide the arrival by this (averages).
    """

    pack: tuple[Piece, ...]
    move: Move | None
    unpack: tuple[Piece, ...]
    fill: float | None = None
    accumulate: bool = False
    divide: int = 1
