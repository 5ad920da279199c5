"""The form of a boxing rule: applies, received_bytes, lower, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from placet.boxing.lowered import Lowered
from placet.placement.layout import Layout, Shape
from placet.placement.placement import Placement


@dataclass(frozen=True)
class Change:
    """A change of placement along some axes of one mesh, the others staying alike.

    With several axes they act as one flattened axis, the first named slowest. A change
    between two meshes names no axes.
    """

    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    src: Layout
    dst: Layout
    axes: tuple[str, ...]

    def __repr__(self) -> str:
        if not self.axes:
            return f"{_listed(self.src)} -> {_listed(self.dst)}"
        src = ", ".join(repr(self.src.placement(axis)) for axis in self.axes)
        dst = ", ".join(repr(self.dst.placement(axis)) for axis in self.axes)
        if len(self.axes) > 1:
            src, dst = f"({src})", f"({dst})"
        return f"{src} -> {dst} @{','.join(self.axes)}"


def _listed(layout: Layout) -> str:
    placements = ", ".join(map(repr, layout.placements))
    if len(layout.placements) > 1:
        placements = f"({placements})"
    return f"{placements} @{layout.mesh!r}"


@dataclass(frozen=True)
class Rule:
    """One row of the table: how one kind of placement becomes another.

    Args:
        name: as in "split-to-broadcast".
        applies: whether the rule covers (src, dst) along an axis.
        received_bytes: bytes that all ranks of the mesh receive together.
        lower: (change, rank) -> what that rank does.
    """

    name: str
    applies: Callable[[Placement, Placement], bool]
    received_bytes: Callable[[Change], int]
    lower: Callable[[Change, int], Lowered]

    def __repr__(self) -> str:
        return f"<{self.name}>"
