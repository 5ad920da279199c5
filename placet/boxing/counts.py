"""How many elements all ranks hold or share, without asking each rank.

A part is a product of intervals, one per dim, and each axis cuts one dim at most. So
all ranks together hold, of a tensor,

    held = product of the sizes of the axes that do not split it
           x product over dims of the summed lengths of the dim's parts     -> held

(the summed lengths are the dim's size, or more with a halo). When axes A change
S(i) -> S(j), each the innermost cut of its dim, a rank's new part overlaps its old one
in (old interval of i) x (new interval of j) x the rest. The two intervals share the
coordinates along A and no others, so

    kept = rest x sum over coordinates of A of (old lengths of i) (new lengths of j)

with lengths summed over the other axes that cut the dim           -> kept_by_split
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from placet.placement.layout import Layout, Shape
from placet.placement.placement import Split


def held(shapes: tuple[Shape, ...], layout: Layout) -> int:
    """Elements of some tensors that all ranks hold together, halos counted in."""
    copies = math.prod(_copies(layout, ()))
    return copies * sum(
        math.prod(_summed(n, layout, dim) for dim, n in enumerate(shape))
        for shape in shapes
    )


def _copies(layout: Layout, without: tuple[str, ...]) -> list[int]:
    """Sizes of the axes that do not split, but those named."""
    mesh = layout.mesh
    rows = zip(mesh.axes, mesh.sizes, layout.placements, strict=True)
    return [n for a, n, p in rows if a not in without and not isinstance(p, Split)]


def _summed(size: int, layout: Layout, dim: int) -> int:
    """The lengths of all parts of a dim."""
    halo = next(
        (
            p.halo
            for p in layout.placements
            if isinstance(p, Split) and p.dim == dim and any(p.halo)
        ),
        None,
    )
    if halo is None:
        return size
    cuts = tuple(layout.mesh.size(axis) for axis in layout.split_axes(dim))
    starts, stops = _intervals(size, cuts)
    wide = np.minimum(size, stops + halo[1]) - np.maximum(0, starts - halo[0])
    return int(np.where(stops > starts, wide, 0).sum())


def group_size(layout: Layout, axes: tuple[str, ...]) -> int:
    """How many ranks differ along some axes only."""
    return math.prod(layout.mesh.size(axis) for axis in axes)


def kept_by_split(
    shapes: tuple[Shape, ...], src: Layout, dst: Layout, axes: tuple[str, ...]
) -> int:
    """Elements that ranks keep, all together, when `axes` change S(i) -> S(j).

    Args:
        axes: those that change; the same i and j on all, innermost cuts of both.
    """
    old, new = src.placement(axes[0]), dst.placement(axes[0])
    assert isinstance(old, Split), old
    assert isinstance(new, Split), new
    i, j = old.dim, new.dim
    total = 0
    for shape in shapes:
        lengths_i = _inner_lengths(shape[i], src, i, axes)
        lengths_j = _inner_lengths(shape[j], dst, j, axes)
        rest = math.prod(
            _summed(n, src, dim) for dim, n in enumerate(shape) if dim not in (i, j)
        )
        total += rest * int((lengths_i * lengths_j).sum())
    return total * math.prod(_copies(src, axes))


def _inner_lengths(
    size: int, layout: Layout, dim: int, axes: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    """Lengths of a dim's parts by their coordinates along `axes`, others summed."""
    cuts = layout.split_axes(dim)
    sizes = tuple(layout.mesh.size(axis) for axis in cuts)
    starts, stops = _intervals(size, sizes)
    inner = [axis for axis in cuts if axis in axes]  # in the order of the cuts
    grid = (stops - starts).reshape(-1, *(layout.mesh.size(axis) for axis in inner))
    summed = grid.sum(axis=0)
    return summed.transpose([inner.index(axis) for axis in axes]).reshape(-1)


@lru_cache(maxsize=65536)
def _intervals(
    size: int, cuts: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All parts of a dim cut by torch.chunk's rule, nested in order: starts, stops."""
    starts, stops = np.array([0]), np.array([size])
    for num_parts in cuts:
        step = -(-(stops - starts) // num_parts)
        first = starts[:, None] + np.arange(num_parts) * step[:, None]
        last = np.minimum(first + step[:, None], stops[:, None])
        starts = np.minimum(first, stops[:, None]).reshape(-1)
        stops = last.reshape(-1)
    return starts, stops


def largest_part(shape: Shape, layout: Layout) -> int:
    """Elements that the fullest rank holds; halos count in full."""
    total = 1
    for dim, size in enumerate(shape):
        for axis in layout.split_axes(dim):
            size = -(-size // layout.mesh.size(axis))
        halos = (p for p in layout.placements if isinstance(p, Split) and p.dim == dim)
        size = min(shape[dim], size + sum(sum(p.halo) for p in halos))
        total *= size
    return total
