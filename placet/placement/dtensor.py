"""Placed tensors as DTensors and back: DTensor is the view that storage uses.

    S(i) <-> Shard(i)      B <-> Replicate()      P(r) <-> Partial(r)

Where several axes cut one dim in another order than the mesh's, DTensor writes the
order into _StridedShard(i, split_factor): the number of pieces into which later mesh
axes have cut the dim before. Its parts are ours only where the cuts are even.
"""

import math
from collections.abc import Sequence
from itertools import permutations
from typing import cast, get_args

import torch
from torch import Tensor

from placet.placement.layout import Layout, Shape, check_fits
from placet.placement.mesh import Mesh
from placet.placement.placed import Placed
from placet.placement.placement import (
    Broadcast,
    Partial,
    Placement,
    Reduction,
    Split,
)
from placet.torch_private import dtensor as private


def to_dtensor_placements(layout: Layout) -> tuple[private.Placement, ...]:
    """A layout as DTensor's placements.

    Raises:
        ValueError: a halo, which DTensor does not have.
    """
    return tuple(_to_dtensor(layout, i) for i in range(len(layout.placements)))


def from_dtensor_placements(
    mesh: Mesh, placements: Sequence[private.Placement], num_dims: int | None = None
) -> Layout:
    """DTensor's placements as a layout.

    Args:
        mesh: the mesh.
        placements: one per mesh axis.
        num_dims: of the tensor; needed for dims counted from the back.

    Raises:
        ValueError: a placement that has no counterpart here.
    """
    found = [_from_dtensor(p, num_dims) for p in placements]
    plain = Layout(mesh, found)
    factors = [private.split_factor(p) for p in placements]
    if all(factor == 1 for factor in factors):
        return plain
    for order in permutations(mesh.axes):
        layout = Layout(mesh, found, order)
        if [_split_factor(layout, i) for i in range(len(found))] == factors:
            return layout
    raise ValueError(
        f"{list(placements)} on {mesh!r}: no order of cuts has the split factors "
        f"{factors}"
    )


def to_mesh(device_mesh: private.DeviceMesh) -> Mesh:
    """A device mesh's value; axes without names become axis0, axis1, ..."""
    sizes = tuple(device_mesh.mesh.shape)
    names = device_mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(len(sizes)))
    axes = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    return Mesh(axes, device_mesh.mesh.flatten().tolist())


def to_dtensor(
    local: Tensor, shape: Shape, layout: Layout, device_mesh: private.DeviceMesh
) -> private.DTensor:
    """A rank's part as a DTensor that shares its memory; nothing is sent.

    Args:
        local: this rank's part.
        shape: the global shape.
        layout: where the parts are.
        device_mesh: the layout's mesh, bound to processes.

    Raises:
        ValueError: the device mesh is another one, or DTensor has no such parts.
    """
    check_fits(shape, layout)
    mesh = to_mesh(device_mesh)
    if (mesh.sizes, mesh.ranks) != (layout.mesh.sizes, layout.mesh.ranks):
        raise ValueError(
            f"{layout!r} is on {layout.mesh!r}, the device mesh is {mesh!r}; "
            "give the one with the same sizes and ranks"
        )
    _check_even(shape, layout)
    strides = torch.empty(shape, device="meta").stride()
    return private.DTensor.from_local(
        local,
        device_mesh,
        to_dtensor_placements(layout),
        run_check=False,
        shape=torch.Size(shape),
        stride=strides,
    )


def from_dtensor(tensor: private.DTensor) -> Placed:
    """A DTensor as a placed tensor that shares its memory; nothing is sent."""
    shape = tuple(tensor.shape)
    mesh = to_mesh(tensor.device_mesh)
    layout = from_dtensor_placements(mesh, tensor.placements, len(shape))
    _check_even(shape, layout)
    return Placed(tensor.to_local(), shape, layout)


def _to_dtensor(layout: Layout, index: int) -> private.Placement:
    placement = layout.placements[index]
    match placement:
        case Broadcast():
            return private.Replicate()
        case Partial():
            return private.Partial(placement.reduction)
    if any(placement.halo):
        raise ValueError(
            f"{layout!r}: DTensor has no halos; box {placement!r} to "
            f"S({placement.dim}) before"
        )
    factor = _split_factor(layout, index)
    if factor == 1:
        return private.Shard(placement.dim)
    return private.StridedShard(placement.dim, split_factor=factor)


def _from_dtensor(placement: private.Placement, num_dims: int | None) -> Placement:
    if isinstance(placement, private.Replicate):
        return Broadcast()
    if isinstance(placement, private.Partial):
        name = private.reduction(placement)
        if name not in get_args(Reduction):
            known = ", ".join(get_args(Reduction))
            raise ValueError(f"{placement}: placet knows the reductions {known}")
        return Partial(cast(Reduction, name))
    if isinstance(placement, private.Shard | private.StridedShard):
        dim = placement.dim
        if dim < 0:
            if num_dims is None:
                raise ValueError(f"{placement}: give num_dims to count from the back")
            dim += num_dims
        return Split(dim)
    raise ValueError(f"{placement!r} has no counterpart among S, B and P")


def _split_factor(layout: Layout, index: int) -> int:
    """The pieces into which later mesh axes have cut an axis's dim before it."""
    placement = layout.placements[index]
    if not isinstance(placement, Split):
        return 1
    cuts = layout.split_axes(placement.dim)
    outer = cuts[: cuts.index(layout.mesh.axes[index])]
    later = [axis for axis in outer if layout.mesh.axis_index(axis) > index]
    return math.prod(layout.mesh.size(axis) for axis in later)


def _check_even(shape: Shape, layout: Layout) -> None:
    for dim, size in enumerate(shape):
        axes = layout.split_axes(dim)
        in_mesh_order = [axis for axis in layout.mesh.axes if axis in axes]
        pieces = math.prod(layout.mesh.size(axis) for axis in axes)
        if list(axes) != in_mesh_order and size % pieces:
            raise ValueError(
                f"{layout!r} of {shape}: DTensor cuts dim {dim} in other parts, "
                f"as {size} is no multiple of {pieces} and {'/'.join(axes)} is not the "
                "mesh's order; use the mesh's order or pad the dim"
            )
