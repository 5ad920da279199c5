"""A boxing's plan: its steps, and the bytes they move, before anything runs.

>>> plan = plan_boxing([(8, 4)], torch.float32, src, dst)
>>> plan
P(sum) -> B @data
>>> plan.received_bytes(rank=0), plan.bound_bytes()
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from placet.boxing.algorithms import choose
from placet.boxing.bound import bound_bytes
from placet.boxing.lowered import Lowered
from placet.boxing.moves import Move
from placet.boxing.path import Price, Step, direct_step, find_path, mean_bytes
from placet.boxing.table import changed_axes
from placet.placement.cluster import Cluster
from placet.placement.layout import Layout, Shape, check_fits
from placet.placement.placement import Partial


@dataclass(frozen=True)
class BoxingPlan:
    """The steps that take tensors from one layout to another.

    Args:
        shapes: the global shapes of the tensors, which travel in one payload.
        dtype: their dtype.
        src: where they are.
        dst: where they shall be.
        steps: changes, each with the rule that makes it; none where nothing changes.
        cluster: the links by which moves choose their algorithm; None leaves them.
    """

    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    src: Layout
    dst: Layout
    steps: tuple[Step, ...]
    cluster: Cluster | None = None

    def __repr__(self) -> str:
        if not self.steps:
            return f"{self.src!r} stays"
        if len(self.steps) == 1:
            return repr(self.steps[0].change)
        return "; ".join(repr(step.change) for step in self.steps)

    def lowered(self, rank: int) -> tuple[Lowered, ...]:
        """What a rank does, step by step."""
        found = (lower_step(step, rank) for step in self.steps)
        return tuple(_with_algorithm(lowered, self.cluster) for lowered in found)

    def moves(self, rank: int) -> tuple[Move, ...]:
        """The moves that a rank takes part in."""
        found = (lowered.move for lowered in self.lowered(rank))
        return tuple(move for move in found if move is not None)

    def sent_bytes(self, rank: int) -> int:
        """Bytes that a rank sends, exactly."""
        return sum(move.sent_bytes(rank) for move in self.moves(rank))

    def received_bytes(self, rank: int) -> int:
        """Bytes that a rank receives, exactly."""
        return sum(move.received_bytes(rank) for move in self.moves(rank))

    def payload_bytes(self) -> int:
        """Bytes of the global tensors."""
        return sum(map(math.prod, self.shapes)) * self.dtype.itemsize

    def bound_bytes(self) -> int:
        """What all ranks together must receive, whatever the algorithm."""
        return bound_bytes(self.shapes, self.dtype, self.src, self.dst)


def plan_boxing(
    shapes: Sequence[Shape],
    dtype: torch.dtype,
    src: Layout,
    dst: Layout,
    *,
    price: Price = mean_bytes,
    name: str = "a tensor",
    cluster: Cluster | None = None,
) -> BoxingPlan:
    """The cheapest plan that takes tensors from one layout to another.

    Args:
        shapes: global shapes; several tensors travel together in one payload.
        dtype: their dtype.
        src: where they are.
        dst: where they shall be; on another mesh, if need be.
        price: what a step costs; mean bytes received per rank unless said.
        name: what errors call the tensors.
        cluster: the links by which moves choose their algorithm.

    Raises:
        ValueError: a layout does not fit a shape, or an average of integers.
    """
    shapes = tuple(tuple(shape) for shape in shapes)
    for shape in shapes:
        try:
            check_fits(shape, src)
            check_fits(shape, dst)
        except ValueError as error:
            what = subject(src, dst, name, shape)
            raise ValueError(f"cannot box {what}: {error}") from None
    averages = Partial("avg") in (*src.placements, *dst.placements)
    if averages and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(
            f"cannot box {subject(src, dst, name, None)} of {dtype}: an average of "
            "integers is not an integer; use P(sum), or a floating point dtype"
        )
    steps = find_path(shapes, dtype, src, dst, price)
    return BoxingPlan(shapes, dtype, src, dst, steps, cluster)


def plan_direct(
    shapes: Sequence[Shape],
    dtype: torch.dtype,
    src: Layout,
    dst: Layout,
    cluster: Cluster | None = None,
) -> BoxingPlan:
    """The plan of exactly one step, as a planner has priced it.

    Halos change by box intersection, all else by a rule of the table.

    Args:
        shapes, dtype, src, dst, cluster: as for `plan_boxing`; one mesh.

    Raises:
        ValueError: no one rule makes this change.
    """
    shapes = tuple(tuple(shape) for shape in shapes)
    step = direct_step(shapes, dtype, src, dst)
    if step is None:
        raise ValueError(
            f"cannot box {src!r} -> {dst!r} in one step: no rule makes this change; "
            "use plan_boxing, which finds a path"
        )
    return BoxingPlan(shapes, dtype, src, dst, (step,), cluster)


def subject(src: Layout, dst: Layout, name: str, shape: Shape | None) -> str:
    """What a boxing changes, for errors.

    >>> subject(src, dst, "w", (6, 4))
    "S(1) -> S(0) of w (6, 4) over axis 'data' of 4 ranks"
    """
    what = name if shape is None else f"{name} {shape}"
    if src.mesh == dst.mesh:
        axes = changed_axes(src, dst)
        if len(axes) == 1:
            (axis,) = axes
            before, after = src.placement(axis), dst.placement(axis)
            where = f"axis {axis!r} of {src.mesh.size(axis)} ranks"
            return f"{before!r} -> {after!r} of {what} over {where}"
    return f"{src!r} -> {dst!r} of {what}"


def _with_algorithm(lowered: Lowered, cluster: Cluster | None) -> Lowered:
    if lowered.move is None or cluster is None:
        return lowered
    return replace(lowered, move=choose(lowered.move, cluster))


@lru_cache(maxsize=65536)
def lower_step(step: Step, rank: int) -> Lowered:
    """What a rank does in a step; a rank outside its meshes does nothing."""
    meshes = step.change.src.mesh, step.change.dst.mesh
    if all(rank not in mesh.ranks for mesh in meshes):
        return Lowered(src_shapes=None, dst_shapes=None, dtype=step.change.dtype)
    return step.rule.lower(step.change, rank)
