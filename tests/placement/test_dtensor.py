"""DTensor as the storage view: the same parts, the same placements, and back."""

from itertools import permutations, product

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from placet.placement.dtensor import (
    from_dtensor,
    from_dtensor_placements,
    to_dtensor,
    to_dtensor_placements,
    to_mesh,
)
from placet.placement.layout import Layout, box_shape, part_box, relative
from placet.placement.mesh import Mesh
from placet.placement.placed import Placed
from placet.placement.placement import B, P, S
from placet.torch_private.dtensor import (
    Partial,
    Replicate,
    Shard,
    StridedShard,
    local_shape_and_offset,
)
from placet.torch_private.dtensor_plans import fake_process_group

MESH = Mesh("data=2, model=3")


def ordered_layouts(mesh, options):
    found = {}
    for placements in product(options, repeat=len(mesh.axes)):
        for order in permutations(mesh.axes):
            found[Layout(mesh, placements, order)] = None
    return list(found)


@pytest.mark.parametrize("rank", range(6))
def test_parts_are_dtensors(rank):
    with fake_process_group(6, rank):
        device_mesh = init_device_mesh("cpu", MESH.sizes, mesh_dim_names=MESH.axes)
        for shape in [(7, 5), (6, 6), (1, 2), (0, 3)]:
            for placements in product([S(0), S(1), B], repeat=2):
                layout = Layout(MESH, placements)
                box = part_box(shape, layout, rank)
                local, offset = local_shape_and_offset(
                    shape, device_mesh, to_dtensor_placements(layout)
                )
                assert local == box_shape(box)
                if 0 not in local:
                    assert offset == tuple(start for start, _ in box)


@pytest.mark.parametrize("rank", [0, 2, 4])
def test_ordered_cuts_are_dtensors_strided_shards(rank):
    whole = torch.arange(12 * 6).view(12, 6)
    with fake_process_group(6, rank):
        device_mesh = init_device_mesh("cpu", MESH.sizes, mesh_dim_names=MESH.axes)
        for layout in ordered_layouts(MESH, [S(0), S(1), B]):
            placements = to_dtensor_placements(layout)
            theirs = distribute_tensor(
                whole, device_mesh, placements, src_data_rank=None
            ).to_local()
            box = part_box((12, 6), layout, rank)
            assert torch.equal(theirs, whole[relative(box, ((0, 0), (0, 0)))]), layout


def test_placements_there_and_back():
    mesh = Mesh("a=2, b=2, c=3")
    for layout in ordered_layouts(mesh, [S(0), S(1), B, P("max")]):
        placements = to_dtensor_placements(layout)
        assert from_dtensor_placements(mesh, placements) == layout
    assert to_dtensor_placements(Layout(MESH, [S(1), P("avg")])) == (
        Shard(1),
        Partial("avg"),
    )
    strided = Layout(MESH, [S(0), S(0)], ["model", "data"])
    assert to_dtensor_placements(strided) == (
        StridedShard(0, split_factor=3),
        Shard(0),
    )


def test_tensor_there_and_back():
    layout = Layout(MESH, [S(0), B])
    with fake_process_group(6, 3):
        device_mesh = init_device_mesh("cpu", MESH.sizes, mesh_dim_names=MESH.axes)
        local = torch.arange(15.0).view(3, 5)
        tensor = to_dtensor(local, (7, 5), layout, device_mesh)
        assert tuple(tensor.shape) == (7, 5)
        placed = from_dtensor(tensor)
        assert placed.local.data_ptr() == local.data_ptr()
        assert (placed.shape, placed.layout) == ((7, 5), layout)
        assert repr(placed) == "Placed((7, 5) float32, Layout(S(0) @data, B @model))"
        assert to_mesh(device_mesh) == MESH


def test_dtensor_refuses():
    halo = Layout(MESH, [S(0, halo=(1, 1)), B])
    with pytest.raises(ValueError, match="DTensor has no halos"):
        to_dtensor_placements(halo)
    with pytest.raises(ValueError, match="knows the reductions sum, avg, max, min"):
        from_dtensor_placements(MESH, [Partial("product"), Replicate()])
    with pytest.raises(ValueError, match="give num_dims"):
        from_dtensor_placements(MESH, [Shard(-1), Replicate()])
    found = from_dtensor_placements(MESH, [Shard(-1), Replicate()], 3)
    assert found == Layout(MESH, [S(2), B])
    with pytest.raises(ValueError, match="no order of cuts"):
        from_dtensor_placements(MESH, [StridedShard(0, split_factor=5), Shard(0)])
    with fake_process_group(6):
        device_mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("data", "model"))
        with pytest.raises(ValueError, match="same sizes and ranks"):
            to_dtensor(torch.zeros(2, 2), (2, 2), Layout(MESH, [B, B]), device_mesh)
    with fake_process_group(6):
        device_mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("data", "model"))
        uneven = Layout(MESH, [S(0), S(0)], ["model", "data"])
        with pytest.raises(ValueError, match="7 is no multiple of 6"):
            to_dtensor(torch.zeros(2), (7,), uneven, device_mesh)


def test_placed_refuses_a_tensor_that_is_no_part():
    layout = Layout(Mesh("a=2"), [S(0)])
    Placed(torch.zeros(2, 3), (5, 3), layout)
    with pytest.raises(ValueError, match=r"\(4, 3\) is no part of \(5, 3\)"):
        Placed(torch.zeros(4, 3), (5, 3), layout)
