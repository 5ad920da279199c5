"""Meshes: grids of ranks with named axes."""

import pytest

from placet.placement.mesh import Mesh


def test_mesh_is_a_row_major_grid():
    mesh = Mesh("data=2, model=3")
    assert (mesh.axes, mesh.sizes, mesh.num_ranks) == (("data", "model"), (2, 3), 6)
    assert [mesh.coordinate(r) for r in (0, 2, 3)] == [(0, 0), (0, 2), (1, 0)]
    assert all(mesh.rank_at(mesh.coordinate(r)) == r for r in mesh.ranks)
    assert (mesh.axis_index("model"), mesh.size("model")) == (1, 3)


def test_mesh_groups():
    mesh = Mesh("a=2, b=2, c=2")
    assert mesh.group("a", rank=5) == (1, 5)
    assert mesh.group(["c", "a"], rank=0) == (0, 4, 1, 5)
    assert mesh.group(["a", "c"], rank=0) == (0, 1, 4, 5)


def test_mesh_of_other_ranks_is_another_mesh():
    rotated = Mesh("a=3", ranks=[1, 2, 0])
    assert rotated != Mesh("a=3")
    assert rotated.coordinate(0) == (2,)
    assert rotated.group("a", rank=0) == (1, 2, 0)
    assert repr(rotated) == "Mesh('a=3', ranks=[1, 2, 0])"
    assert repr(Mesh("a=3")) == "Mesh('a=3')"
    assert hash(rotated) == hash(Mesh("a=3", ranks=[1, 2, 0]))


@pytest.mark.parametrize(
    ("axes", "ranks", "message"),
    [
        ("data:2", None, "cannot read 'data:2'"),
        ("a=2, a=3", None, "axis 'a' is named twice"),
        ("a=0", None, "needs a size of at least 1"),
        ("a=2", [0, 0], "needs 2 different ranks"),
        ("a=2", [0, 1, 2], "needs 2 different ranks"),
    ],
)
def test_mesh_refuses(axes, ranks, message):
    with pytest.raises(ValueError, match=message):
        Mesh(axes, ranks)


def test_mesh_names_what_it_lacks():
    mesh = Mesh("data=2")
    with pytest.raises(ValueError, match="no axis 'model'; its axes are 'data'"):
        mesh.size("model")
    with pytest.raises(ValueError, match="rank 2 is not in"):
        mesh.coordinate(2)
