"""A layout: how a whole mesh holds a tensor, and which part each rank has.

Parts follow torch.chunk, nested in a stated order of axes (the mesh's own unless
said): a dim of n indices over p ranks is cut every ceil(n / p) indices, so the last
parts may be short or empty, and the next axis cuts each part again. A part is
therefore always a box, one interval per dim:

    part(rank) = product over dims of [start, stop)        -> part_box
    local index = global index - start                     -> to_local, to_global

These are DTensor's own parts (and those of its strided shards, by `split_order`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, Partial, Placement, Reduction, Split

Shape: TypeAlias = tuple[int, ...]
Box: TypeAlias = tuple[tuple[int, int], ...]
"""One half-open interval (start, stop) per dim; the box of a 0-d tensor is ()."""


@dataclass(frozen=True, init=False)
class Layout:
    """A placement for every axis of a mesh.

    >>> Layout(Mesh("data=2, model=2"), [S(0), B])
    Layout(S(0) @data, B @model)

    Args:
        mesh: the mesh.
        placements: one per mesh axis.
        split_order: the order in which axes cut a dim that several of them split,
            outermost first; the mesh's own order when left out. Kept only where it
            matters, so equal layouts compare equal.

    Raises:
        ValueError: not one placement per axis; two different reductions; an unknown
            axis in `split_order`; two halos on one dim.
        TypeError: no mesh, or what is no placement.
    """

    mesh: Mesh
    placements: tuple[Placement, ...]
    split_order: tuple[str, ...]

    def __init__(
        self,
        mesh: Mesh,
        placements: Sequence[Placement],
        split_order: Sequence[str] | None = None,
    ) -> None:
        placements = _checked(mesh, placements)
        if len(placements) != len(mesh.axes):
            raise ValueError(
                f"{mesh!r} has {len(mesh.axes)} axes, got {len(placements)} placements "
                f"{list(placements)}; give one per axis"
            )
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "placements", placements)
        _check_reductions(self)
        _check_halos(self)
        order = tuple(mesh.axes) if split_order is None else tuple(split_order)
        object.__setattr__(self, "split_order", _canonical_order(self, order))

    def __repr__(self) -> str:
        pairs = zip(self.placements, self.mesh.axes, strict=True)
        text = ", ".join(f"{p!r} @{axis}" for p, axis in pairs)
        if self.split_order != self.mesh.axes:
            text += f", split_order={'/'.join(self.split_order)}"
        return f"Layout({text})"

    @property
    def reduction(self) -> Reduction | None:
        """The reduction of the partial axes, or None when there are none."""
        found = [p.reduction for p in self.placements if isinstance(p, Partial)]
        return found[0] if found else None

    @property
    def partial_axes(self) -> tuple[str, ...]:
        """The axes along which the tensor is a sum (or avg, max, min) of terms."""
        pairs = zip(self.mesh.axes, self.placements, strict=True)
        return tuple(a for a, p in pairs if isinstance(p, Partial))

    def placement(self, axis: str) -> Placement:
        """The placement along a named axis."""
        return self.placements[self.mesh.axis_index(axis)]

    def split_axes(self, dim: int) -> tuple[str, ...]:
        """The axes that cut a dim, outermost cut first."""
        return tuple(
            axis
            for axis in self.split_order
            if isinstance(p := self.placement(axis), Split) and p.dim == dim
        )


def _check_reductions(layout: Layout) -> None:
    found = {p.reduction for p in layout.placements if isinstance(p, Partial)}
    if len(found) > 1:
        raise ValueError(
            f"{list(layout.placements)} mixes the reductions {sorted(found)}: a sum of "
            "maxima depends on which is taken first; box one of them to B before"
        )


def _checked(mesh: object, placements: object) -> tuple[Placement, ...]:
    """The placements, if that is what they are: anything else would pass for B."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"{mesh!r} is no mesh; make one with Mesh('data=2, model=2')")
    if not isinstance(placements, Sequence):
        raise TypeError(f"{placements!r} is no list of placements, such as [S(0), B]")
    for placement in placements:
        if not isinstance(placement, Placement):
            raise TypeError(
                f"{placement!r} in {list(placements)} is no placement; give "
                "values such as S(0), B or P()"
            )
    return tuple(placements)


def _check_halos(layout: Layout) -> None:
    dims = [p.dim for p in layout.placements if isinstance(p, Split) and any(p.halo)]
    twice = {d for d in dims if dims.count(d) > 1}
    if twice:
        raise ValueError(
            f"{list(layout.placements)}: dim {min(twice)} has a halo on two axes; "
            "give it to one of them"
        )


def _canonical_order(layout: Layout, order: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh's own order, with axes that cut one dim arranged among their places."""
    axes = layout.mesh.axes
    if sorted(order) != sorted(axes):
        raise ValueError(f"split_order {order} must name each axis of {axes} once")
    canonical = list(axes)
    dims = {p.dim for p in layout.placements if isinstance(p, Split)}
    for dim in dims:
        cuts = [
            i
            for i, p in enumerate(layout.placements)
            if isinstance(p, Split) and p.dim == dim
        ]
        wanted = sorted((axes[i] for i in cuts), key=order.index)
        for i, axis in zip(cuts, wanted, strict=True):
            canonical[i] = axis
    return tuple(canonical)


def check_fits(shape: Shape, layout: Layout) -> None:
    """Refuse a layout that splits a dim the shape does not have.

    Raises:
        ValueError: names the placement, the shape and the dims there are.
    """
    for axis, p in zip(layout.mesh.axes, layout.placements, strict=True):
        if isinstance(p, Split) and p.dim >= len(shape):
            found = f"dims 0 to {len(shape) - 1}" if shape else "no dims (use B)"
            raise ValueError(
                f"cannot place a tensor of shape {shape} as {p!r} @{axis}: it has "
                f"{found}"
            )


@lru_cache(maxsize=65536)
def part_box(shape: Shape, layout: Layout, rank: int, *, halo: bool = True) -> Box:
    """The box of global indices that a rank holds.

    Args:
        shape: the global shape.
        layout: where the tensor is.
        rank: a rank of the layout's mesh.
        halo: count the halo in; without it the boxes of a split partition the tensor.
    """
    check_fits(shape, layout)
    coordinate = layout.mesh.coordinate(rank)
    return tuple(
        _interval(size, dim, layout, coordinate, halo) for dim, size in enumerate(shape)
    )


def _interval(
    size: int, dim: int, layout: Layout, coordinate: tuple[int, ...], halo: bool
) -> tuple[int, int]:
    start, stop, below, above = 0, size, 0, 0
    for axis in layout.split_axes(dim):
        i = layout.mesh.axis_index(axis)
        start, stop = chunk(start, stop, layout.mesh.sizes[i], coordinate[i])
        placement = layout.placements[i]
        if halo and isinstance(placement, Split) and any(placement.halo):
            below, above = placement.halo
    if start == stop:
        return start, stop
    return max(0, start - below), min(size, stop + above)


def chunk(start: int, stop: int, num_parts: int, index: int) -> tuple[int, int]:
    """Part `index` of [start, stop) cut in `num_parts` by torch.chunk's rule."""
    step = -(-(stop - start) // num_parts)
    return min(start + index * step, stop), min(start + (index + 1) * step, stop)


def box_shape(box: Box) -> Shape:
    """The shape of a box."""
    return tuple(stop - start for start, stop in box)


def num_elements(box: Box) -> int:
    """How many indices a box holds."""
    count = 1
    for start, stop in box:
        count *= stop - start
    return count


def intersect(a: Box, b: Box) -> Box:
    """The common box of two; empty (with start == stop) where they do not meet."""
    return tuple(
        (max(a0, b0), max(max(a0, b0), min(a1, b1)))
        for (a0, a1), (b0, b1) in zip(a, b, strict=True)
    )


def relative(box: Box, origin: Box) -> tuple[slice, ...]:
    """A box as slices of the local tensor whose box is `origin`."""
    return tuple(
        slice(start - o, stop - o)
        for (start, stop), (o, _) in zip(box, origin, strict=True)
    )


def local_shape(shape: Shape, layout: Layout, rank: int) -> Shape:
    """The shape of the part that a rank holds."""
    return box_shape(part_box(shape, layout, rank))


def to_local(
    index: Sequence[int], shape: Shape, layout: Layout, rank: int
) -> Shape | None:
    """A global index as an index of a rank's part, or None if the rank lacks it."""
    box = part_box(shape, layout, rank)
    if any(not start <= i < stop for i, (start, stop) in zip(index, box, strict=True)):
        return None
    return tuple(i - start for i, (start, _) in zip(index, box, strict=True))


def to_global(index: Sequence[int], shape: Shape, layout: Layout, rank: int) -> Shape:
    """An index of a rank's part as a global index."""
    box = part_box(shape, layout, rank)
    return tuple(i + start for i, (start, _) in zip(index, box, strict=True))


def replicated(mesh: Mesh) -> Layout:
    """The layout with the whole tensor on every rank."""
    return Layout(mesh, [Broadcast()] * len(mesh.axes))


def along(mesh: Mesh, axis: str, placement: Placement) -> Layout:
    """The layout with `placement` on one axis and B on the others."""
    placements: list[Placement] = [Broadcast()] * len(mesh.axes)
    placements[mesh.axis_index(axis)] = placement
    return Layout(mesh, placements)
