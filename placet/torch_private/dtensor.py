"""DTensor's names, private ones among them."""

from collections.abc import Sequence

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard

StridedShard = _StridedShard

__all__ = [
    "DTensor",
    "DeviceMesh",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "StridedShard",
    "local_shape_and_offset",
    "reduction",
    "split_factor",
]


def reduction(placement: Partial) -> str:
    """The name of a partial placement's reduction."""
    return str(placement.reduce_op)


def split_factor(placement: Placement) -> int:
    """How often later mesh axes cut the dim before this one; 1 for a plain shard."""
    return int(placement.split_factor) if isinstance(placement, _StridedShard) else 1


def local_shape_and_offset(
    shape: Sequence[int], device_mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The local shape of the calling rank, and where it starts."""
    local, offset = compute_local_shape_and_global_offset(
        tuple(shape), device_mesh, tuple(placements)
    )
    return tuple(map(int, local)), tuple(map(int, offset))
