"""Our plans against DTensor's, by bytes: never dearer, on even shapes.

On uneven shapes DTensor pads, so even ones are the fair comparison.
"""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from placet.boxing.plan import plan_boxing
from placet.placement.dtensor import to_dtensor_placements
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import Partial
from placet.torch_private.dtensor import Partial as TorchPartial
from placet.torch_private.dtensor import Replicate, Shard
from placet.torch_private.dtensor_plans import (
    fake_process_group,
    flatten,
    planned_changes,
)
from tests.boxing.lockstep import layouts, total_received

SHAPE = (12, 12)


def dtensor_elements(src, dst, device_mesh, min_cost) -> float:
    """Elements that all ranks receive in DTensor's plan."""
    mesh = src.mesh
    placements = to_dtensor_placements(src)
    local = SHAPE[0] * SHAPE[1] / 1.0
    for p, size in zip(placements, mesh.sizes, strict=True):
        local /= size if isinstance(p, Shard) else 1
    received = 0.0
    changes = planned_changes(
        SHAPE, device_mesh, placements, to_dtensor_placements(dst), min_cost=min_cost
    )
    for size, before, after in changes:
        match before, after:
            case TorchPartial(), Replicate():
                received += 2 * (size - 1) / size * local
            case TorchPartial(), Shard():
                received += (size - 1) / size * local
                local /= size
            case Shard(), Replicate():
                received += (size - 1) * local
                local *= size
            case Shard(), Shard():
                received += (size - 1) / size * local
            case Replicate(), Shard():
                local /= size
            case _:
                raise AssertionError(f"DTensor plans {before} -> {after}")
    return received * mesh.num_ranks


def is_known_to_dtensor(src: Layout, dst: Layout) -> bool:
    """DTensor makes no partial values on request."""
    pairs = zip(src.placements, dst.placements, strict=True)
    return all(p == q for p, q in pairs if isinstance(q, Partial))


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize("axes", ["a=2, b=2", "a=2, b=3", "a=4"])
@pytest.mark.parametrize("min_cost", [False, True])
def test_boxing_is_never_dearer_than_dtensor(axes, min_cost, flattened):
    mesh = Mesh(axes)
    cheaper = 0
    with fake_process_group(mesh.num_ranks):
        device_mesh = init_device_mesh("cpu", mesh.sizes, mesh_dim_names=mesh.axes)
        if flattened and len(mesh.axes) > 1:
            flatten(device_mesh, "both")
        for src in layouts(mesh):
            for dst in layouts(mesh):
                if not is_known_to_dtensor(src, dst):
                    continue
                plan = plan_boxing([SHAPE], torch.float64, src, dst)
                ours = total_received(plan) / 8
                theirs = dtensor_elements(src, dst, device_mesh, min_cost)
                assert ours <= theirs + 1e-6, f"{plan!r}: {ours} against {theirs}"
                cheaper += ours < theirs - 1e-6
    assert cheaper or len(mesh.axes) == 1
