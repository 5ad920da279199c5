"""The peak of a mesh's fullest rank, without a walk on each rank.

What a rank holds follows from

    row(rank) = length of each dim of each part,                         -> _rows
                elements that it sends and receives where slices become other slices
                    (what it has already does not travel),
                whether it fills terms of a sum with zeros: all but the first of an axis

A rank is left out if another one's row is nowhere less. Where parts are even and have
no halos, one rank is left; with a halo along an axis, one in the middle.
"""

from collections.abc import Iterator

import numpy as np

from placet.boxing.counts import Counts, common, lengths
from placet.placement.layout import Layout
from placet.placement.placement import Partial, Split
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.liveness import Kept, Peak, peak_bytes
from placet.program.refine import Refined


def fullest_peak(
    graph: Graph, division: Division, refined: Refined, kept: Kept
) -> Peak:
    """The peak of a step's memory on the rank that holds most.

    Args:
        graph, division, refined: what runs.
        kept: what the optimizer keeps.
    """
    ranks = fullest_ranks(graph, division, refined)
    peaks = (peak_bytes(graph, division, refined, rank, kept=kept) for rank in ranks)
    return max(peaks, key=lambda peak: peak.num_bytes)


def fullest_ranks(graph: Graph, division: Division, refined: Refined) -> list[int]:
    """Ranks one of which holds as much at its peak as any rank of the mesh."""
    mesh = division.mesh
    rows = {row.tobytes(): row for row in _rows(graph, refined)}
    wide = (np.broadcast_to(row, mesh.sizes).reshape(-1) for row in rows.values())
    columns = np.stack([np.zeros(mesh.num_ranks, np.int64), *wide], axis=1)
    kinds, firsts = np.unique(columns, axis=0, return_index=True)
    return [
        mesh.ranks[first]
        for kind, first in zip(kinds, firsts, strict=True)
        if (kinds >= kind).all(axis=1).sum() == 1
    ]


def _rows(graph: Graph, refined: Refined) -> Iterator[Counts]:
    """What may differ, by coordinate; of size 1 along axes that make no difference."""
    wiring = refined.wiring
    parts = {(graph.tensors[name].shape, at) for name, at in wiring.layouts.values()}
    for shape, layout in parts:
        yield from lengths(shape, layout)
    steps = {
        (graph.tensors[step.tensor].shape, step.src, step.dst)
        for step in wiring.steps.values()
    }
    for shape, src, dst in steps:
        for axis, (p, q) in enumerate(zip(src.placements, dst.placements, strict=True)):
            if isinstance(q, Partial) and not isinstance(p, Partial):
                yield _not_first(src, axis)
        if _become_slices(src, dst):
            stays = common(shape, src, dst)
            for layout in (src, dst):
                parts_of = np.broadcast_arrays(1, *lengths(shape, layout))
                yield np.prod(parts_of, 0) - stays


def _not_first(layout: Layout, axis: int) -> Counts:
    """1 on ranks that are not the first along an axis."""
    shape = [1] * len(layout.mesh.axes)
    shape[axis] = layout.mesh.sizes[axis]
    return np.minimum(np.arange(shape[axis]), 1).reshape(shape)


def _become_slices(src: Layout, dst: Layout) -> bool:
    """Whether slices become other slices."""
    pairs = zip(src.placements, dst.placements, strict=True)
    changed = ((p, q) for p, q in pairs if p != q)
    return any(isinstance(p, Split) and isinstance(q, Split) for p, q in changed)
