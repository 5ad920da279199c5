"""`placet.place`: a tensor onto a mesh, or from one placement to another."""

from collections.abc import Sequence

from torch import Tensor

from placet.boxing.box import box
from placet.job.session import current_wire
from placet.placement.layout import Layout, replicated
from placet.placement.mesh import Mesh
from placet.placement.placed import Placed
from placet.placement.placement import Placement


def place(
    tensor: Tensor | Placed, mesh: Mesh, placements: Sequence[Placement]
) -> Placed:
    """Place a tensor on a mesh; differentiable.

    >>> mesh = placet.Mesh("data=2")
    >>> rows = placet.place(x, mesh, [S(0)])         # this rank's slice; 0 bytes
    >>> whole = placet.place(rows, mesh, [B])        # an all-gather

    Args:
        tensor: a plain tensor that every rank has whole, or one that is placed already.
        mesh: of ranks of this job.
        placements: one per axis of the mesh.

    Returns:
        The placed tensor; `.local` is this rank's part.

    Raises:
        ValueError: a placement that does not fit the tensor or the mesh.
        TypeError: no tensor, no mesh, or what is no placement.
    """
    if not isinstance(tensor, Tensor | Placed) or not isinstance(mesh, Mesh):
        raise TypeError(
            f"place takes a tensor and a Mesh, got a {type(tensor).__name__} and a "
            f"{type(mesh).__name__}; write place(torch.ones(4), Mesh('data=2'), [S(0)])"
        )
    wire = current_wire()
    outside = [rank for rank in mesh.ranks if rank >= wire.num_ranks]
    if outside:
        raise ValueError(
            f"{mesh!r} has ranks {outside}, but this job has {wire.num_ranks}: start "
            f"it with -n {max(mesh.ranks) + 1}, or make the mesh smaller"
        )
    if isinstance(tensor, Tensor):
        tensor = Placed(tensor, tuple(tensor.shape), replicated(mesh))
    dst = Layout(mesh, placements)
    local = box(tensor.local, tensor.layout, dst, wire, shape=tensor.shape, key="place")
    return Placed(local, tensor.shape, dst)
