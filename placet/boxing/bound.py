"""The fewest bytes that a change of placement can move, whatever the algorithm.

Take one element e. Before, it is made of terms (one value, if no axis is partial; one
per coordinate of the partial axes otherwise), each held by the ranks whose part covers
e: its holders; a rank holds at most one. After, it is wanted by m groups of ranks:
single ranks, or, where destination axes are partial, the ranks along those axes, which
may hold it as terms of their own (that replicas of such a term must be equal is left
out). A group is complete once each term, added into
whatever values, has reached one of its ranks. A transfer carries one value, whatever
it was made of. Two bounds on the number of transfers hold, so does their maximum:

    first complete   If some groups hold all terms at the start, each other group
        receives at least once. Otherwise look at the group that is complete first. A
        term it lacks was sent by a holder outside it, and ranks hold one term each, so
        at least (terms it lacks) different ranks have sent by then. The m - 1 others
        become complete later, each at a receive of its own:
            min over groups (terms lacked) + m - 1
    last to leave    A term that some group lacks must be sent by one of its holders.
        Call the first such send of each such term its departure: t departures, from
        different ranks. Before the last one, of a term s, only groups that hold s from
        the start can be complete, and that departure reaches one group more. The rest
        receive after it:
            t + max(0, m - 1 - max over terms (groups that hold it))

With no partial axis both say: each wanter that lacks e receives it once. From P over q
ranks to a set D of single ranks: q - 1 + |D| - 1, so q - 1 for a reduce-scatter and
2(q - 1) for an all-reduce; replicas of terms do not help. The bound of a tensor is the
sum over its elements; coding several elements into one is not considered.

A halo's adjoint counts its overlaps as terms; elements inside one part have one term.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, product

import torch

from placet.boxing.terms import needed_box, owned_box, term_of, wanters_of
from placet.placement.layout import Box, Layout, Shape, num_elements, part_box


def bound_bytes(
    shapes: tuple[Shape, ...], dtype: torch.dtype, src: Layout, dst: Layout
) -> int:
    """Bytes that all ranks together must receive."""
    elements = sum(bound_elements(shape, src, dst) for shape in shapes)
    return elements * dtype.itemsize


@lru_cache(maxsize=65536)
def bound_elements(shape: Shape, src: Layout, dst: Layout) -> int:
    """Element transfers that a change of placement needs at least."""
    total = 0
    for cell in _cells(shape, src, dst):
        total += num_elements(cell) * _transfers(shape, cell, src, dst)
    return total


def _transfers(shape: Shape, cell: Box, src: Layout, dst: Layout) -> int:
    """Transfers that each element of a cell needs at least."""
    holds = {
        rank: term_of(src, rank)
        for rank in src.mesh.ranks
        if _covers(part_box(shape, src, rank), cell)
    }
    terms = {
        term_of(src, rank)
        for rank in src.mesh.ranks
        if _covers(owned_box(shape, src, rank), cell)
    }
    groups = [
        {holds[rank] for rank in ranks if rank in holds}
        for box, ranks in wanters_of(shape, dst).values()
        if _covers(box, cell)
    ]
    lacked = [len(terms - held) for held in groups]
    if not any(lacked):
        return 0
    incomplete = sum(map(bool, lacked))
    first_complete = min(lacked) + len(groups) - 1
    if incomplete < len(groups):
        first_complete = incomplete
    leaving = {term for held in groups for term in terms - held}
    most_held = max(sum(term in held for held in groups) for term in leaving)
    last_to_leave = len(leaving) + max(0, len(groups) - 1 - most_held)
    return max(first_complete, last_to_leave)


def _cells(shape: Shape, src: Layout, dst: Layout) -> Iterator[Box]:
    """The tensor cut at every edge of every part: all elements of a cell are alike."""
    boxes = [part_box(shape, src, rank) for rank in src.mesh.ranks]
    boxes += [owned_box(shape, src, rank) for rank in src.mesh.ranks]
    boxes += [needed_box(shape, dst, rank) for rank in dst.mesh.ranks]
    edges = [
        sorted({0, size, *(edge for box in boxes for edge in box[dim])})
        for dim, size in enumerate(shape)
    ]
    for cell in product(*(tuple(pairwise(found)) for found in edges)):
        if num_elements(cell):
            yield cell


def _covers(box: Box, cell: Box) -> bool:
    pairs = zip(box, cell, strict=True)
    return all(a <= lo and hi <= b for (a, b), (lo, hi) in pairs)
