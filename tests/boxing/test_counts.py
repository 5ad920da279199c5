"""Bytes of a change in closed form: equal to the sums over ranks that they replace."""

import time
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placet.boxing.counts import held, largest_part
from placet.boxing.intersection import RULE as INTERSECTION
from placet.boxing.intersection import all_copies
from placet.boxing.plan import plan_direct
from placet.boxing.rule import Change
from placet.boxing.table import axis_rule, make_change
from placet.placement.layout import Layout, Shape, num_elements, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S, Split
from tests.boxing.lockstep import layouts

MESHES = ["a=2", "a=3", "a=4", "a=2, b=2", "a=2, b=3", "a=3, b=2"]
SHAPES = [(4, 4), (5, 3), (7, 13), (1, 3), (6, 9), (0, 2)]


def moved(change: Change) -> int:
    """The oracle: what every rank's own moves receive, summed."""
    (shape,) = change.shapes
    plan = plan_direct((shape,), change.dtype, change.src, change.dst)
    return sum(plan.received_bytes(rank) for rank in change.src.mesh.ranks)


def check_all(mesh: Mesh, shape: Shape) -> int:
    count = 0
    for src, dst in product(layouts(mesh), repeat=2):
        rule = axis_rule(src, dst)
        if rule is None:
            continue
        change = make_change((shape,), torch.float32, src, dst)
        assert rule.received_bytes(change) == moved(change), (change, shape)
        count += 1
    return count


@pytest.mark.parametrize("axes", MESHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_in_closed_form_are_those_of_the_moves(axes: str, shape: Shape):
    assert check_all(Mesh(axes), shape) >= 9


@pytest.mark.prove
@pytest.mark.parametrize("shape", [(5, 3), (8, 8), (13, 6), (3, 1)])
def test_bytes_in_closed_form_on_three_axes(shape: Shape):
    assert check_all(Mesh("a=2, b=2, c=2"), shape) > 100


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(0, 17), st.integers(1, 11), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    st.data(),
)
def test_bytes_of_drawn_changes(
    shape: Shape, sizes: tuple[int, int, int], data: st.DataObject
):
    mesh = Mesh(", ".join(f"{a}={n}" for a, n in zip("abc", sizes, strict=True)))
    options: list[Placement] = [S(0), S(1), S(2), B, P()]
    src = data.draw(st.tuples(*[st.sampled_from(options)] * 3))
    axes = data.draw(st.sets(st.sampled_from(range(3)), min_size=1))
    new = data.draw(st.sampled_from(options))
    dst = tuple(new if i in axes else p for i, p in enumerate(src))
    layout = Layout(mesh, src), Layout(mesh, dst)
    rule = axis_rule(*layout)
    if rule is not None:
        change = make_change((shape,), torch.float64, *layout)
        assert rule.received_bytes(change) == moved(change)


def halo_pairs(dim: int, halo: tuple[int, int]) -> list[tuple[Split, Split]]:
    return [(S(dim), S(dim, halo)), (Split(dim, halo, adjoint=True), S(dim))]


@pytest.mark.parametrize("size", [12, 7, 3, 1])
@pytest.mark.parametrize("halo", [(1, 1), (0, 2), (3, 0)])
@pytest.mark.parametrize("other", [B, P(), S(0)])
def test_bytes_of_halos_are_those_of_the_copies(
    size: int, halo: tuple[int, int], other: Placement
):
    mesh = Mesh("a=2, b=4")
    for old, new in halo_pairs(1, halo):
        src, dst = Layout(mesh, [other, old]), Layout(mesh, [other, new])
        change = Change(((4, size),), torch.float32, src, dst, ("b",))
        copies = all_copies(change)
        found = sum(num_elements(c.box) for c in copies if c.sender != c.receiver)
        assert INTERSECTION.received_bytes(change) == 4 * found


@pytest.mark.parametrize("axes", MESHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_held_and_the_largest_part_are_those_of_the_ranks(axes: str, shape: Shape):
    mesh = Mesh(axes)
    halo = Layout(mesh, [S(1, (1, 2)), *[B] * (len(mesh.axes) - 1)])
    for layout in [*layouts(mesh), halo]:
        parts = [num_elements(part_box(shape, layout, rank)) for rank in mesh.ranks]
        assert held((shape,), layout) == sum(parts)
        assert largest_part(shape, layout) >= max(parts)
        if layout is not halo:
            assert largest_part(shape, layout) == max(parts)


def test_a_thousand_ranks_cost_no_more_than_two():
    mesh = Mesh("a=16, b=8, c=8")
    found = [
        make_change(((1000 + k, 777, 64),), torch.float32, src, dst)
        for k in range(5)
        for src in [Layout(mesh, [S(0), S(1), B]), Layout(mesh, [B, S(0), S(0)])]
        for dst in layouts(mesh)
        if axis_rule(src, dst) is not None
    ]
    began = time.process_time()
    for change in found:
        rule = axis_rule(change.src, change.dst)
        assert rule is not None
        assert rule.received_bytes(change) >= 0
    assert (time.process_time() - began) / len(found) < 1e-3
