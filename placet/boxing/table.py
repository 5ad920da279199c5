"""The table of boxing rules, and where on a mesh each may be used.

Bytes received by the p ranks of an axis together, T = bytes of the tensor:

    src \\ dst   S(j)                    B                      P
    S(i)        all-to-all, T(p-1)/p    all-gather, T(p-1)     pad, 0
    B           slice, 0                nothing                keep or zeros, 0
    P           reduce-scatter, T(p-1)  all-reduce, 2T(p-1)    scale, 0

A rule may take several axes as one flattened axis if all of them change alike. Where
other axes cut the same dim, the changing axes must be its innermost cuts before and
after: only then do the parts of a group make up one box. Any other change is a box
intersection (`intersection.RULE`).

Source: OneFlow (arXiv:2110.15032), core/framework/sbp_infer_util.cpp.
"""

import torch

from placet.boxing.broadcast_to_partial import RULE as BROADCAST_TO_PARTIAL
from placet.boxing.broadcast_to_split import RULE as BROADCAST_TO_SPLIT
from placet.boxing.partial_to_broadcast import RULE as PARTIAL_TO_BROADCAST
from placet.boxing.partial_to_partial import LINEAR
from placet.boxing.partial_to_partial import RULE as PARTIAL_TO_PARTIAL
from placet.boxing.partial_to_split import RULE as PARTIAL_TO_SPLIT
from placet.boxing.rule import Change, Rule
from placet.boxing.split_to_broadcast import RULE as SPLIT_TO_BROADCAST
from placet.boxing.split_to_partial import RULE as SPLIT_TO_PARTIAL
from placet.boxing.split_to_split import RULE as SPLIT_TO_SPLIT
from placet.placement.layout import Layout, Shape
from placet.placement.placement import Split

AXIS_RULES: tuple[Rule, ...] = (
    BROADCAST_TO_SPLIT,
    BROADCAST_TO_PARTIAL,
    SPLIT_TO_PARTIAL,
    PARTIAL_TO_PARTIAL,
    SPLIT_TO_BROADCAST,
    PARTIAL_TO_SPLIT,
    SPLIT_TO_SPLIT,
    PARTIAL_TO_BROADCAST,
)
"""Rules for one axis, or several as one."""


def changed_axes(src: Layout, dst: Layout) -> tuple[str, ...]:
    """The axes of one mesh whose placement differs."""
    triples = zip(src.mesh.axes, src.placements, dst.placements, strict=True)
    return tuple(axis for axis, p, q in triples if p != q)


def axis_rule(src: Layout, dst: Layout) -> Rule | None:
    """The rule that changes all differing axes in one move, or None."""
    axes = changed_axes(src, dst)
    if not axes or not _innermost(src, dst, axes):
        return None
    pairs = [(src.placement(axis), dst.placement(axis)) for axis in axes]
    for rule in AXIS_RULES:
        if all(rule.applies(p, q) for p, q in pairs):
            return rule
    return None


def reductions_agree(src: Layout, dst: Layout) -> bool:
    """Whether terms of one may stay terms of the other."""
    found = {layout.reduction for layout in (src, dst)} - {None}
    return len(found) < 2 or found == set(LINEAR)


def make_change(
    shapes: tuple[Shape, ...], dtype: torch.dtype, src: Layout, dst: Layout
) -> Change:
    """A change with its axes filled in."""
    axes = changed_axes(src, dst) if src.mesh == dst.mesh else ()
    return Change(shapes, dtype, src, dst, axes)


def _innermost(src: Layout, dst: Layout, axes: tuple[str, ...]) -> bool:
    """Whether the axes are the last cuts of each dim, the others cutting alike."""
    for dim in _split_dims(src) | _split_dims(dst):
        before, after = src.split_axes(dim), dst.split_axes(dim)
        outer = tuple(axis for axis in before if axis not in axes)
        if outer != tuple(axis for axis in after if axis not in axes):
            return False
        if before[: len(outer)] != outer or after[: len(outer)] != outer:
            return False
        changes = len(before) > len(outer) or len(after) > len(outer)
        if changes and (_has_halo(src, dim) or _has_halo(dst, dim)):
            return False
    return True


def _split_dims(layout: Layout) -> set[int]:
    return {p.dim for p in layout.placements if isinstance(p, Split)}


def _has_halo(layout: Layout, dim: int) -> bool:
    return any(
        isinstance(p, Split) and p.dim == dim and any(p.halo) for p in layout.placements
    )
