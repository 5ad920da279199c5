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

    With several axes they act as one flattened axis, the first named slowest.
    """

    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    src: Layout
    dst: Layout
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """One row of the table: how one kind of placement becomes another.

    Args:
        name: as in "split-to-broadcast".
        applies: whether the rule covers (src, dst) along an axis.
        received_bytes: (global bytes, num ranks) -> bytes per rank, even parts.
        lower: (change, rank) -> what that rank does.
    """

    name: str
    applies: Callable[[Placement, Placement], bool]
    received_bytes: Callable[[int, int], float]
    lower: Callable[[Change, int], Lowered]
