"""The lower bound: known cases by formula, small ones against an exhaustive search."""

from itertools import product

import pytest

from placet.boxing.bound import bound_elements
from placet.boxing.terms import needed_box, term_of, wanters_of
from placet.placement.layout import Layout, num_elements, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from tests.boxing.lockstep import layouts

FOUR, SQUARE = Mesh("a=4"), Mesh("a=2, b=2")


@pytest.mark.parametrize(
    ("src", "dst", "per_element"),
    [
        ([S(0)], [B], 3),
        ([P()], [S(0)], 3),
        ([P()], [B], 6),
        ([B], [S(0)], 0),
        ([B], [P()], 0),
        ([S(0)], [P()], 0),
        ([P()], [P()], 0),
        ([P()], [P("avg")], 0),
    ],
)
def test_bound_on_one_axis(src, dst, per_element):
    layouts = Layout(FOUR, src), Layout(FOUR, dst)
    assert bound_elements((8, 3), *layouts) == per_element * 24


@pytest.mark.parametrize(
    ("src", "dst", "per_element"),
    [
        # Replicas do not help an all-reduce; four ranks want it, two terms make it.
        ([P(), B], [B, B], 1 + 3),
        ([P(), P()], [B, B], 3 + 3),
        # Each row of the mesh lacks the other's term.
        ([P(), B], [B, P()], 2),
        # Each term must leave: an all-reduce along b in each column.
        ([P(), P()], [P(), B], 4),
        ([P(), P()], [P(), S(0)], 2),
    ],
)
def test_bound_on_two_axes(src, dst, per_element):
    layouts = Layout(SQUARE, src), Layout(SQUARE, dst)
    assert bound_elements((4, 4), *layouts) == per_element * 16


def fewest_transfers(shape, cell, src, dst):
    """The fewest transfers of one element, by breadth-first search.

    A state is what each rank knows: a set of terms. A transfer adds all that the sender
    knows to the receiver, which is more than any real one can do.
    """
    ranks = src.mesh.ranks
    terms = sorted({term_of(src, r) for r in ranks})
    start = tuple(
        frozenset({term_of(src, r)})
        if covers(part_box(shape, src, r), cell)
        else frozenset()
        for r in ranks
    )
    groups = [
        members for box, members in wanters_of(shape, dst).values() if covers(box, cell)
    ]

    def is_done(state):
        return all(
            len(frozenset().union(*(state[r] for r in members))) == len(terms)
            for members in groups
        )

    frontier, seen, count = {start}, {start}, 0
    while not any(map(is_done, frontier)):
        count += 1
        reached = set()
        for state in frontier:
            for a, b in product(ranks, ranks):
                if a != b and not state[a] <= state[b]:
                    after = (*state[:b], state[b] | state[a], *state[b + 1 :])
                    reached.add(after)
        frontier = reached - seen
        seen |= frontier
    return count


def covers(box, cell):
    return all(a <= lo and hi <= b for (a, b), (lo, hi) in zip(box, cell, strict=True))


@pytest.mark.parametrize("axes", ["a=2, b=2", "a=3"])
def test_no_algorithm_beats_the_bound(axes):
    mesh, shape = Mesh(axes), (2, 2)
    tight = total = 0
    for src in layouts(mesh):
        for dst in layouts(mesh):
            cells = [((i, i + 1), (j, j + 1)) for i in range(2) for j in range(2)]
            fewest = sum(fewest_transfers(shape, c, src, dst) for c in cells)
            bound = bound_elements(shape, src, dst)
            assert bound <= fewest, (src, dst)
            tight += bound == fewest
            total += 1
    # With free merging inside groups the search may be below what is possible, but
    # the bound is not far below the search: it is the same nearly everywhere.
    assert tight == total


def test_bound_counts_only_what_a_halo_lacks():
    halo = Layout(FOUR, [S(0, halo=(1, 1))])
    assert bound_elements((8, 2), Layout(FOUR, [S(0)]), halo) == 6 * 2
    assert bound_elements((8, 2), halo, Layout(FOUR, [S(0)])) == 0
    assert num_elements(needed_box((8, 2), halo, 1)) == 8
