"""Random meshes, shapes, layouts, halos and rank orders: boxings keep the value."""

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S, Split
from tests.boxing.lockstep import check, total_received


@st.composite
def meshes(draw, num_ranks):
    """A mesh of at most `num_ranks` of the ranks 0 to 5."""
    sizes = draw(st.sampled_from([x for x in SIZES if prod(x) <= num_ranks]))
    ranks = draw(st.permutations(range(6)))[: prod(sizes)]
    axes = ", ".join(f"{name}={size}" for name, size in zip("xyz", sizes, strict=False))
    return Mesh(axes, ranks)


SIZES = [(1,), (2,), (3,), (5,), (2, 2), (1, 3), (3, 2), (2, 1, 2)]


def prod(sizes):
    count = 1
    for size in sizes:
        count *= size
    return count


@st.composite
def layouts_on(draw, mesh, num_dims):
    reduction = draw(st.sampled_from(["sum", "avg", "max", "min"]))
    options = [B, P(reduction), *map(S, range(num_dims))]
    placements = [draw(st.sampled_from(options)) for _ in mesh.axes]
    cut = [p.dim for p in placements if isinstance(p, Split)]
    for i, p in enumerate(placements):
        if isinstance(p, Split) and cut.count(p.dim) == 1 and draw(st.booleans()):
            halo = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
            placements[i] = S(p.dim, halo)
    return Layout(mesh, placements, draw(st.permutations(mesh.axes)))


@st.composite
def changes(draw, same_mesh):
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    mesh = draw(meshes(6))
    other = mesh if same_mesh else draw(meshes(6))
    return (
        shape,
        draw(layouts_on(mesh, len(shape))),
        draw(layouts_on(other, len(shape))),
    )


@seed(1)
@given(changes(same_mesh=True))
@settings(max_examples=150, deadline=None)
def test_boxing_keeps_the_value_and_the_bound(change):
    shape, src, dst = change
    plan = check(shape, src, dst)
    assert total_received(plan) >= plan.bound_bytes()


@seed(2)
@given(changes(same_mesh=False))
@settings(max_examples=100, deadline=None)
def test_boxing_between_meshes_keeps_the_value(change):
    shape, src, dst = change
    plan = check(shape, src, dst)
    assert total_received(plan) >= plan.bound_bytes()
    if not src.partial_axes and not dst.partial_axes:
        assert total_received(plan) == plan.bound_bytes()
