"""Layouts: parts by torch.chunk's rule, nested; global index <-> local index."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placet.placement.layout import (
    Layout,
    chunk,
    intersect,
    local_shape,
    num_elements,
    part_box,
    relative,
    replicated,
    to_global,
    to_local,
)
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S, Split

SQUARE = Mesh("a=2, b=2")


def test_placements_print_as_in_the_vocabulary():
    assert [repr(p) for p in (S(0), B, P(), P("max"))] == [
        "S(0)",
        "B",
        "P(sum)",
        "P(max)",
    ]
    assert repr(S(1, halo=(1, 2))) == "S(1, halo=(1, 2))"
    assert repr(Layout(SQUARE, [S(0), B])) == "Layout(S(0) @a, B @b)"


@given(st.integers(0, 40), st.integers(1, 9))
def test_chunk_is_the_rule_of_torch_chunk(size, num_parts):
    parts = [chunk(0, size, num_parts, i) for i in range(num_parts)]
    expected = [list(x) for x in torch.chunk(torch.arange(size), num_parts)]
    found = [list(range(start, stop)) for start, stop in parts]
    padding = [[]] * (num_parts - len(expected))
    assert found == [[int(i) for i in part] for part in expected] + padding


def test_nested_split_cuts_each_part_again():
    layout = Layout(SQUARE, [S(0), S(0)])
    assert [part_box((5,), layout, r)[0] for r in range(4)] == [
        (0, 2),
        (2, 3),
        (3, 4),
        (4, 5),
    ]


def test_split_order_says_which_axis_cuts_first():
    inner = Layout(SQUARE, [S(0), S(0)], ["b", "a"])
    assert inner.split_axes(0) == ("b", "a")
    assert [part_box((8,), inner, r)[0][0] for r in range(4)] == [0, 4, 2, 6]
    assert "split_order=b/a" in repr(inner)


def test_split_order_counts_only_where_it_matters():
    assert Layout(SQUARE, [S(0), S(1)], ["b", "a"]) == Layout(SQUARE, [S(0), S(1)])
    mesh = Mesh("a=2, b=2, c=2")
    one = Layout(mesh, [S(0), B, S(0)], ["c", "b", "a"])
    assert one == Layout(mesh, [S(0), B, S(0)], ["b", "c", "a"])
    assert one != Layout(mesh, [S(0), B, S(0)])


def test_scalars_and_empty_dims():
    assert part_box((), replicated(SQUARE), 3) == ()
    assert num_elements(()) == 1
    assert local_shape((0, 3), Layout(SQUARE, [S(0), S(1)]), 1) == (0, 1)


def test_halo_is_clipped_and_not_given_to_empty_parts():
    layout = Layout(Mesh("a=4"), [S(0, halo=(1, 2))])
    assert [part_box((5,), layout, r)[0] for r in range(4)] == [
        (0, 4),
        (1, 5),
        (3, 5),
        (5, 5),
    ]
    bare = [part_box((5,), layout, r, halo=False)[0] for r in range(4)]
    assert bare == [(0, 2), (2, 4), (4, 5), (5, 5)]


@st.composite
def shapes_and_layouts(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    mesh = Mesh(", ".join(f"x{i}={n}" for i, n in enumerate(sizes)))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    options = [B, P(), *map(S, range(len(shape)))]
    placements = [draw(st.sampled_from(options)) for _ in sizes]
    order = draw(st.permutations(mesh.axes))
    return shape, Layout(mesh, placements, order)


@given(shapes_and_layouts())
@settings(max_examples=150, deadline=None)
def test_parts_cover_each_index_once_per_replica(case):
    shape, layout = case
    replicas = 1
    for p, size in zip(layout.placements, layout.mesh.sizes, strict=True):
        replicas *= 1 if isinstance(p, Split) else size
    count = torch.zeros(shape)
    for rank in layout.mesh.ranks:
        box = part_box(shape, layout, rank)
        count[relative(box, tuple((0, 0) for _ in shape))] += 1
    assert bool((count == replicas).all())


@given(shapes_and_layouts())
@settings(max_examples=100, deadline=None)
def test_parts_are_nested_torch_chunks(case):
    shape, layout = case
    for rank in layout.mesh.ranks:
        part = torch.arange(max(1, torch.Size(shape).numel()))[
            : torch.Size(shape).numel()
        ]
        part = part.view(shape)
        whole = part
        for dim in range(len(shape)):
            for axis in layout.split_axes(dim):
                i = layout.mesh.axis_index(axis)
                pieces = part.chunk(layout.mesh.sizes[i], dim)
                place = layout.mesh.coordinate(rank)[i]
                empty = part.narrow(dim, 0, 0)
                part = pieces[place] if place < len(pieces) else empty
        box = part_box(shape, layout, rank)
        assert torch.equal(whole[relative(box, tuple((0, 0) for _ in shape))], part)


@given(shapes_and_layouts())
@settings(max_examples=60, deadline=None)
def test_global_and_local_indices_are_inverse(case):
    shape, layout = case
    for rank in layout.mesh.ranks:
        held = 0
        for index in product(*map(range, shape)):
            local = to_local(index, shape, layout, rank)
            if local is not None:
                held += 1
                assert to_global(local, shape, layout, rank) == index
        assert held == num_elements(part_box(shape, layout, rank))


def test_intersect_of_boxes_that_do_not_meet_is_empty():
    assert num_elements(intersect(((0, 2),), ((5, 7),))) == 0
    assert intersect(((0, 4), (1, 3)), ((2, 9), (0, 2))) == ((2, 4), (1, 2))


@pytest.mark.parametrize(
    ("placements", "order", "message"),
    [
        ([B], None, "has 2 axes, got 1 placements"),
        ([P(), P("max")], None, "mixes the reductions"),
        ([S(0, halo=(1, 0)), S(0, halo=(0, 1))], None, "dim 0 has a halo on two axes"),
        ([S(0), S(0)], ["a"], "must name each axis"),
    ],
)
def test_layout_refuses(placements, order, message):
    with pytest.raises(ValueError, match=message):
        Layout(SQUARE, placements, order)


def test_placement_values_refuse():
    with pytest.raises(ValueError, match=r"S\(-1\): dim must be >= 0"):
        S(-1)
    with pytest.raises(ValueError, match="never negative"):
        S(0, halo=(-1, 0))
    with pytest.raises(ValueError, match="must be one of sum, avg, max, min"):
        P("product")


def test_layout_that_does_not_fit_a_shape():
    with pytest.raises(ValueError, match=r"\(3,\) as S\(1\) @a: it has dims 0 to 0"):
        part_box((3,), Layout(SQUARE, [S(1), B]), 0)
    with pytest.raises(ValueError, match="it has no dims"):
        part_box((), Layout(SQUARE, [S(0), B]), 0)
