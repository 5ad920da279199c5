"""Change a tensor's placement, differentiably.

A boxing changes where a value is, never the value, so its cotangent is a boxing back:
from the cotangent's placement at dst to the one at src.

    placement       its cotangent
    S(i)            S(i); with a halo, its adjoint: overlapping entries are terms
    P(sum)          B: each term counts fully
    P(avg)          B / num_ranks
    B               P(sum): what each rank does with its copy adds up
    P(max), P(min)  B where the rank's term is the value (the first rank, in a tie),
                    0 elsewhere

    -> cotangent_in, cotangent_out, _winners
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from placet.boxing.execute import Carrier, Record, run
from placet.boxing.parts import num_averaged
from placet.boxing.plan import BoxingPlan, plan_boxing, subject
from placet.placement.layout import Layout, Shape, check_fits, local_shape
from placet.placement.placement import Broadcast, Partial, Placement, Split


@dataclass(frozen=True)
class _Boxing:
    """What a boxing's backward needs to know of its forward."""

    src: Layout
    dst: Layout
    wire: Carrier
    shape: Shape
    key: str
    priority: int
    record: Record | None


def box(
    tensor: Tensor,
    src: Layout,
    dst: Layout,
    wire: Carrier,
    *,
    shape: Shape | None = None,
    key: str = "box",
    priority: int = 0,
    record: Record | None = None,
) -> Tensor:
    """This rank's part of a tensor in another layout.

    >>> whole = box(part, Layout(mesh, [S(0)]), Layout(mesh, [B]), wire, shape=(5, 3))

    Every rank of both meshes calls it. A rank outside the src's mesh passes an empty
    tensor (with the dtype, device and requires_grad that the others have); a rank
    outside the dst's mesh gets an empty one, whose backward must run as well.

    Args:
        tensor: this rank's part in `src`.
        src: where the tensor is.
        dst: where it shall be.
        wire: anything that carries moves.
        shape: the global shape; may be left out if `src` splits nothing.
        key: the name of the boxing, in moves and errors; equal on all ranks.
        priority: larger goes first, where the wire can.
        record: where the bytes are written down.

    Raises:
        ValueError: a layout does not fit the shape, or the part does not.
    """
    shape = _global_shape(tensor, src, dst, shape, key)
    _check_part(tensor, src, dst, shape, key, wire.rank)
    if src == dst:
        return tensor
    boxing = _Boxing(src, dst, wire, shape, key, priority, record)
    out: Tensor = _Box.apply(tensor, boxing)  # type: ignore[no-untyped-call]
    return out


def to_local(tensor: Tensor, layout: Layout, rank: int) -> Tensor:
    """Leave the world of placed tensors: a copy's gradient is the whole gradient.

    Inside a program the gradients of the copies of a B value are terms to be summed.
    Code that computes the same on each rank gives each copy the whole gradient; this
    keeps the first rank's and drops the others, so that the sum is right.

    Args:
        tensor: this rank's part.
        layout: where the tensor is.
        rank: this rank.
    """
    pairs = zip(layout.mesh.coordinate(rank), layout.placements, strict=True)
    first = all(c == 0 for c, p in pairs if isinstance(p, Broadcast))
    out: Tensor = _ToLocal.apply(tensor, first)  # type: ignore[no-untyped-call]
    return out


def cotangent_in(layout: Layout) -> Layout:
    """The layout in which autograd delivers the gradient of a value."""
    placements = [_cotangent(p, incoming=True) for p in layout.placements]
    return Layout(layout.mesh, placements, layout.split_order)


def cotangent_out(layout: Layout) -> Layout:
    """The layout of the gradient that a value is given.

    It differs from `cotangent_in` for P(max) and P(min): each rank is given the whole
    gradient, to mask it; what it then hands on are terms.
    """
    placements = [_cotangent(p, incoming=False) for p in layout.placements]
    return Layout(layout.mesh, placements, layout.split_order)


def _cotangent(placement: Placement, *, incoming: bool) -> Placement:
    match placement:
        case Split():
            has_halo = any(placement.halo)
            return replace(placement, adjoint=has_halo and not placement.adjoint)
        case Broadcast():
            return Partial("sum")
        case Partial("sum" | "avg"):
            return Broadcast()
    return Partial("sum") if incoming else Broadcast()


class _Box(torch.autograd.Function):
    """A boxing and its cotangent."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, boxing: _Boxing) -> Tensor:
        ctx.boxing = boxing
        if boxing.src.reduction in ("max", "min"):
            ctx.save_for_backward(tensor)
        return _run(tensor, boxing)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        boxing: _Boxing = ctx.boxing
        back = replace(
            boxing,
            src=cotangent_in(boxing.dst),
            dst=cotangent_out(boxing.src),
            key=f"{boxing.key}.cotangent",
        )
        (gradient,) = gradients
        factor = num_averaged(boxing.dst) / num_averaged(boxing.src)
        if factor != 1:
            gradient = gradient * factor
        if back.src != back.dst:
            gradient = _Box.apply(gradient, back)  # type: ignore[no-untyped-call]
        if boxing.src.reduction in ("max", "min"):
            (tensor,) = ctx.saved_tensors
            gradient = gradient * _winners(tensor, boxing)
        return gradient, None


class _ToLocal(torch.autograd.Function):
    """The identity, whose backward keeps one of several equal gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, first: bool) -> Tensor:
        ctx.first = first
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return (gradient if ctx.first else torch.zeros_like(gradient)), None


def _run(tensor: Tensor, boxing: _Boxing) -> Tensor:
    plan = plan_boxing(
        (boxing.shape,), tensor.dtype, boxing.src, boxing.dst, name=boxing.key
    )
    inside = boxing.wire.rank in boxing.src.mesh.ranks
    outs = run(
        plan,
        (tensor,) if inside else (),
        boxing.wire,
        key=_move_key(boxing.key, plan),
        priority=boxing.priority,
        record=boxing.record,
        device=tensor.device,
    )
    if not outs:
        return tensor.new_empty(0)
    # An output that shares the input's memory would make writing to it an error.
    (out,) = outs
    return out.clone() if out.data_ptr() == tensor.data_ptr() else out


@lru_cache(maxsize=4096)
def _move_key(key: str, plan: BoxingPlan) -> str:
    """A key of its own for each change: where groups differ, ranks run ahead."""
    return f"{key}: {plan.src!r} -> {plan.dst!r} of {plan.shapes} {plan.dtype}"


def _winners(tensor: Tensor, boxing: _Boxing) -> Tensor:
    """Where this rank's term is the maximum (minimum), and no earlier rank's is."""
    src, rank = boxing.src, boxing.wire.rank
    if rank not in src.mesh.ranks:
        return torch.ones((), dtype=tensor.dtype, device=tensor.device)
    placements = [Broadcast() if isinstance(p, Partial) else p for p in src.placements]
    reduced = Layout(src.mesh, placements, src.split_order)
    key = f"{boxing.key}.winners"
    best = _run(tensor, replace(boxing, dst=reduced, key=f"{key}.value"))
    members = src.mesh.group(src.partial_axes, rank)
    index = members.index(rank)
    wins = (tensor == best) | tensor.isnan()
    claims = torch.where(wins, index, len(members))
    first_placements = [
        Partial("min") if isinstance(p, Partial) else p for p in src.placements
    ]
    claimed = Layout(src.mesh, first_placements, src.split_order)
    first = _run(claims, replace(boxing, src=claimed, dst=reduced, key=f"{key}.first"))
    return (first == index).to(tensor.dtype)


def _global_shape(
    tensor: Tensor, src: Layout, dst: Layout, shape: Shape | None, key: str
) -> Shape:
    if shape is not None:
        return tuple(shape)
    if any(isinstance(p, Split) for p in src.placements):
        raise ValueError(
            f"cannot box {subject(src, dst, key, None)}: a part of shape "
            f"{tuple(tensor.shape)} fits several global shapes; give shape="
        )
    return tuple(tensor.shape)


def _check_part(
    tensor: Tensor, src: Layout, dst: Layout, shape: Shape, key: str, rank: int
) -> None:
    if rank not in src.mesh.ranks:
        return
    try:
        check_fits(shape, src)
        check_fits(shape, dst)
    except ValueError as error:
        raise ValueError(
            f"cannot box {subject(src, dst, key, shape)}: {error}"
        ) from None
    needed = local_shape(shape, src, rank)
    if tuple(tensor.shape) != needed:
        raise ValueError(
            f"cannot box {subject(src, dst, key, shape)}: the part of rank {rank} must "
            f"be {needed}, got {tuple(tensor.shape)}; give that part, or the tensor's "
            "own shape="
        )
