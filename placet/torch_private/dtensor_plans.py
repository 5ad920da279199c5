"""DTensor's own plans of redistribution, which ours are compared with in tests."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._redistribute import (
    _gen_transform_infos_non_cached,
    _optimize_transform_infos,
)
from torch.distributed.tensor.placement_types import Placement
from torch.testing._internal.distributed.fake_pg import FakeStore


def planned_changes(
    shape: Sequence[int],
    device_mesh: DeviceMesh,
    src: Sequence[Placement],
    dst: Sequence[Placement],
    *,
    min_cost: bool,
) -> list[tuple[int, Placement, Placement]]:
    """What DTensor would do: (number of ranks, from, to) for each step.

    Args:
        shape: the global shape.
        device_mesh: the mesh; its flattened forms are used where DTensor would.
        src, dst: placements.
        min_cost: plan by DTensor's shortest path instead of its greedy default.
    """
    meta = TensorMeta(torch.Size(shape), _strides(shape), torch.float64)
    before = DTensorSpec(device_mesh, tuple(src), meta)
    after = DTensorSpec(device_mesh, tuple(dst), meta)
    infos = _gen_transform_infos_non_cached(before, after, min_cost)
    infos = _optimize_transform_infos(infos, device_mesh, tuple(src), tuple(dst))
    return [
        (
            getattr(info, "mesh", device_mesh).size(info.mesh_dim),
            *info.src_dst_placements,
        )
        for info in infos
    ]


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.empty(tuple(shape), device="meta").stride())


@contextmanager
def fake_process_group(num_ranks: int, rank: int = 0) -> Iterator[None]:
    """A default process group in which nothing is ever sent, for one process."""
    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def flatten(device_mesh: DeviceMesh, name: str) -> None:
    """Give a device mesh its flattened form, so that DTensor may use it."""
    device_mesh._flatten(name)
