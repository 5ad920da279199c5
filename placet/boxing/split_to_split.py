"""Split -> Split on another dim: a true all-to-all.

Each rank keeps the part of its slice that its new slice covers and receives the rest,
(num_ranks - 1) / num_ranks of a part where parts are even.

Source: OneFlow (arXiv:2110.15032), boxing costs; there summed over the ranks.
"""

from functools import lru_cache

import numpy as np

from placet.boxing.counts import held, kept
from placet.boxing.lowered import Lowered, Piece
from placet.boxing.moves import AllToAll
from placet.boxing.parts import (
    dst_box,
    group,
    inside,
    local_shapes,
    move_dtype,
    src_box,
)
from placet.boxing.rule import Change, Rule
from placet.placement.layout import intersect, num_elements
from placet.placement.placement import Placement, Split


def applies(src: Placement, dst: Placement) -> bool:
    """Whether slices of one dim become slices of another."""
    return isinstance(src, Split) and isinstance(dst, Split)


def received_bytes(change: Change) -> int:
    """Bytes received by all ranks: each lacks what its new slice has beyond its old."""
    elements = held(change.shapes, change.dst)
    elements -= kept(change.shapes, change.src, change.dst)
    return elements * change.dtype.itemsize


def lower(change: Change, rank: int) -> Lowered:
    """Give each member what its new slice takes from here, and get the like."""
    members = group(change, rank)
    pack, unpack, keep = [], [], []
    for member in members:
        for t in range(len(change.shapes)):
            old, new = src_box(change, t, rank), dst_box(change, t, rank)
            given = intersect(old, dst_box(change, t, member))
            got = intersect(src_box(change, t, member), new)
            if member == rank and num_elements(got):
                keep.append((Piece(t, inside(got, old)), Piece(t, inside(got, new))))
            elif member != rank:
                if num_elements(given):
                    pack.append(Piece(t, inside(given, old)))
                if num_elements(got):
                    unpack.append(Piece(t, inside(got, new)))
    move = AllToAll(members, _counts(change, members), move_dtype(change.dtype))
    return Lowered(
        src_shapes=local_shapes(change.shapes, change.src, rank),
        dst_shapes=local_shapes(change.shapes, change.dst, rank),
        dtype=change.dtype,
        pack=tuple(pack),
        move=move,
        unpack=tuple(unpack),
        keep=tuple(keep),
    )


@lru_cache(maxsize=1024)
def _counts(change: Change, members: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Elements of each receiver's new slices that are in each sender's old ones."""
    total = np.zeros((len(members), len(members)), np.int64)
    for t in range(len(change.shapes)):
        old = np.array([src_box(change, t, rank) for rank in members])
        new = np.array([dst_box(change, t, rank) for rank in members])
        starts = np.maximum(old[:, None, :, 0], new[None, :, :, 0])
        stops = np.minimum(old[:, None, :, 1], new[None, :, :, 1])
        total += np.maximum(stops - starts, 0).prod(axis=-1)
    np.fill_diagonal(total, 0)
    return tuple(map(tuple, total.tolist()))


RULE = Rule("split-to-split", applies, received_bytes, lower)
