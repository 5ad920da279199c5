"""Who holds which terms of a tensor, and who needs them.

A value is made of terms: one if no axis is partial, one per coordinate of the partial
axes otherwise, and one per overlapping part of a halo's adjoint.

    before   a rank holds one term of its box      -> term_of, owned_box, terms_of
    after    groups of ranks need all terms        -> needed_box, wanters_of
"""

from typing import TypeAlias

from placet.placement.layout import Box, Layout, Shape, part_box
from placet.placement.placement import Partial, Placement, Split

Coordinate: TypeAlias = tuple[int, ...]
"""Where a rank stands along some of a mesh's axes; along partial ones: its term."""


def terms_of(shape: Shape, layout: Layout) -> dict[tuple[Coordinate, Box], list[int]]:
    """The terms that make up a tensor, (term, box) -> the ranks that hold it."""
    found: dict[tuple[Coordinate, Box], list[int]] = {}
    for rank in layout.mesh.ranks:
        key = term_of(layout, rank), owned_box(shape, layout, rank)
        found.setdefault(key, []).append(rank)
    return found


def wanters_of(
    shape: Shape, layout: Layout
) -> dict[Coordinate, tuple[Box, tuple[int, ...]]]:
    """Groups of ranks that share one need: coordinate -> (box, ranks)."""
    found: dict[Coordinate, tuple[Box, tuple[int, ...]]] = {}
    for rank in layout.mesh.ranks:
        pairs = zip(layout.mesh.coordinate(rank), layout.placements, strict=True)
        key = tuple(c for c, p in pairs if not isinstance(p, Partial))
        box, ranks = found.get(key, (needed_box(shape, layout, rank), ()))
        found[key] = box, (*ranks, rank)
    return found


def term_of(layout: Layout, rank: int) -> Coordinate:
    """Which term a rank holds: its coordinate along the axes that hold terms."""
    pairs = zip(layout.mesh.coordinate(rank), layout.placements, strict=True)
    return tuple(c for c, p in pairs if isinstance(p, Partial) or is_adjoint(p))


def owned_box(shape: Shape, layout: Layout, rank: int) -> Box:
    """A rank's part of a source: no halo, but the overlap of a halo's adjoint."""
    return _mixed_box(shape, layout, rank, halo=False)


def needed_box(shape: Shape, layout: Layout, rank: int) -> Box:
    """What a rank must get: its halo too, but zeros do for a halo's adjoint."""
    return _mixed_box(shape, layout, rank, halo=True)


def _mixed_box(shape: Shape, layout: Layout, rank: int, *, halo: bool) -> Box:
    adjoint = {p.dim for p in layout.placements if isinstance(p, Split) and p.adjoint}
    with_halo = part_box(shape, layout, rank)
    without = part_box(shape, layout, rank, halo=False)
    return tuple(
        a if (dim in adjoint) != halo else b
        for dim, (a, b) in enumerate(zip(with_halo, without, strict=True))
    )


def is_adjoint(placement: Placement) -> bool:
    """Whether a part's overlaps are terms: the cotangent of a halo."""
    return isinstance(placement, Split) and placement.adjoint
