"""How many elements all ranks hold or share, without asking each rank.

A part is a product of intervals, one per dim, and each axis cuts one dim at most. So
all ranks together hold, of a tensor,

    held = product of the sizes of the axes that do not split it
           x product over dims of the summed lengths of the dim's parts     -> held

(the summed lengths are the dim's size, or more with a halo). What a rank holds before
a change and after it is a box too, the intersection of two. Its length along a dim
depends on the coordinates along the axes that cut that dim, before or after, so

    kept = product of the sizes of the axes that never split
           x sum over coordinates of the others of
                 product over dims of the lengths of the intersections   -> kept

which is a product of small arrays, one a dim, exact for uneven parts and halos.
"""

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from placet.placement.layout import Layout, Shape
from placet.placement.placement import Split

Counts: TypeAlias = npt.NDArray[np.int64]


def held(shapes: tuple[Shape, ...], layout: Layout) -> int:
    """Elements of some tensors that all ranks hold together, halos counted in."""
    rows = zip(layout.mesh.sizes, layout.placements, strict=True)
    copies = math.prod(n for n, p in rows if not isinstance(p, Split))
    return copies * sum(
        math.prod(_summed(n, layout, dim) for dim, n in enumerate(shape))
        for shape in shapes
    )


def _summed(size: int, layout: Layout, dim: int) -> int:
    """The lengths of all parts of a dim."""
    if not any(
        isinstance(p, Split) and p.dim == dim and any(p.halo) for p in layout.placements
    ):
        return size
    cuts = _cuts(layout, dim)
    starts, stops = _grid(size, *cuts)
    return int((stops - starts).sum())


def group_size(layout: Layout, axes: tuple[str, ...]) -> int:
    """How many ranks differ along some axes only."""
    return math.prod(layout.mesh.size(axis) for axis in axes)


def kept(shapes: tuple[Shape, ...], src: Layout, dst: Layout) -> int:
    """Elements that ranks hold before a change and after it, all together.

    Args:
        shapes: of the tensors.
        src, dst: layouts of one mesh; partial axes hold the same term in both.
    """
    total = 0
    for shape in shapes:
        product = common(shape, src, dst)
        never = (
            n for n, m in zip(src.mesh.sizes, product.shape, strict=True) if m != n
        )
        total += int(product.sum()) * math.prod(never)
    return total


def common(shape: Shape, src: Layout, dst: Layout) -> Counts:
    """Elements that each rank holds before a change and after it.

    Returns:
        By coordinate; of size 1 along axes that make no difference.
    """
    product: Counts = np.ones((1,) * len(src.mesh.axes), np.int64)
    for dim, size in enumerate(shape):
        before = _grid(size, *_cuts(src, dim))
        after = _grid(size, *_cuts(dst, dim))
        lengths = np.minimum(before[1], after[1]) - np.maximum(before[0], after[0])
        product = product * np.maximum(lengths, 0)
    return product


def lengths(shape: Shape, layout: Layout) -> list[Counts]:
    """How long each rank's part is along each dim; see `common` for the form."""
    grids = (_grid(size, *_cuts(layout, dim)) for dim, size in enumerate(shape))
    return [stops - starts for starts, stops in grids]


_Cuts = tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, int]]


def _cuts(layout: Layout, dim: int) -> _Cuts:
    """How a dim is cut: sizes, where the axes stand, how many there are, its halo."""
    mesh = layout.mesh
    where = tuple(map(mesh.axes.index, layout.split_axes(dim)))
    halos = [p.halo for p in layout.placements if isinstance(p, Split) and p.dim == dim]
    halo = next(filter(any, halos), (0, 0))
    return tuple(mesh.sizes[i] for i in where), where, len(mesh.axes), halo


@lru_cache(maxsize=65536)
def _grid(
    size: int,
    cuts: tuple[int, ...],
    where: tuple[int, ...],
    num_axes: int,
    halo: tuple[int, int],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The starts and stops of a dim's parts, by coordinate; 1 where no axis cuts."""
    starts, stops = _intervals(size, cuts)
    filled = stops > starts
    starts = np.where(filled, np.maximum(0, starts - halo[0]), starts)
    stops = np.where(filled, np.minimum(size, stops + halo[1]), stops)
    shape = [1] * num_axes
    for i, num_parts in zip(where, cuts, strict=True):
        shape[i] = num_parts
    order = sorted(range(len(where)), key=where.__getitem__)
    return (
        starts.reshape(cuts).transpose(order).reshape(shape),
        stops.reshape(cuts).transpose(order).reshape(shape),
    )


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
