"""The cheapest way from one layout to another, as steps that the table knows.

    states    what an axis may pass through, in every order of cuts  -> _states
    edges     a change that one rule makes in one move               -> _edges
    price     a callable; bytes received per rank unless said        -> mean_bytes
    path      shortest by price (Dijkstra)                           -> find_path

Box intersection can make almost any change, at a price that grows with the square of
the ranks to compute; it is considered where it begins or ends a path.

Source: OneFlow, boxing_collector.cpp, and DTensor's min-cost planner; differs in
flattened axes, intersections, free splits of replicas, and two meshes.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product

import torch

from placet.boxing.intersection import RULE as INTERSECTION
from placet.boxing.rule import Change, Rule
from placet.boxing.table import axis_rule, make_change, reductions_agree
from placet.placement.layout import Layout, Shape, intersect, num_elements, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, Partial, Placement, Split


@dataclass(frozen=True)
class Step:
    """One change made by one rule."""

    change: Change
    rule: Rule

    def __repr__(self) -> str:
        return f"{self.change!r} by {self.rule.name}"


def direct_step(
    shapes: tuple[Shape, ...], dtype: torch.dtype, src: Layout, dst: Layout
) -> Step | None:
    """The step that changes a layout to another of its mesh by one rule, or None.

    Halos change by box intersection.
    """
    change = make_change(shapes, dtype, src, dst)
    pairs = [(src.placement(a), dst.placement(a)) for a in change.axes]
    if any(isinstance(p, Split) and any(p.halo) for pair in pairs for p in pair):
        return Step(change, INTERSECTION)
    rule = axis_rule(src, dst)
    return None if rule is None else Step(change, rule)


Price = Callable[[Step], float]
"""What a step costs; paths of least total price are taken."""

MOVE_BYTES, STEP_BYTES, INTERSECTION_BYTES = 2e-3, 1e-3, 4e-3
"""What a move, any step, and an intersection count as: far under a byte, for ties."""


def mean_bytes(step: Step) -> float:
    """The default price: mean bytes received per rank, then the fewest moves."""
    received = received_bytes(step)
    ranks = {*step.change.src.mesh.ranks, *step.change.dst.mesh.ranks}
    extra = STEP_BYTES + (MOVE_BYTES if received else 0.0)
    if step.rule is INTERSECTION:
        extra += INTERSECTION_BYTES
    return received / len(ranks) + extra


@lru_cache(maxsize=65536)
def received_bytes(step: Step) -> int:
    """Bytes that all ranks receive in a step."""
    return step.rule.received_bytes(step.change)


@lru_cache(maxsize=4096)
def find_path(
    shapes: tuple[Shape, ...],
    dtype: torch.dtype,
    src: Layout,
    dst: Layout,
    price: Price = mean_bytes,
) -> tuple[Step, ...]:
    """The steps of least price from one layout to another.

    Args:
        shapes: the global shapes of tensors that travel together.
        dtype: their dtype.
        src: where they are.
        dst: where they shall be.
        price: what one step costs, >= 0.
    """
    states = _states(shapes, src, dst)
    best: dict[Layout, tuple[float, int]] = {src: (0.0, 0)}
    came: dict[Layout, tuple[Layout, Step]] = {}
    queue: list[tuple[float, int, int, Layout]] = [(0.0, 0, 0, src)]
    done: set[Layout] = set()
    count = 0
    while queue:
        cost, hops, _, here = heapq.heappop(queue)
        if here == dst:
            return _trace(came, src, dst)
        if here in done:
            continue
        done.add(here)
        for there in states:
            if there in done:
                continue
            for step in _edges(shapes, dtype, (src, dst), here, there):
                reached = (cost + price(step), hops + 1)
                if there not in best or reached < best[there]:
                    best[there] = reached
                    came[there] = here, step
                    count += 1
                    heapq.heappush(queue, (*reached, count, there))
    raise AssertionError(f"no path {src!r} -> {dst!r}")


def _trace(
    came: dict[Layout, tuple[Layout, Step]], src: Layout, dst: Layout
) -> tuple[Step, ...]:
    steps = []
    here = dst
    while here != src:
        here, step = came[here]
        steps.append(step)
    return tuple(reversed(steps))


def _edges(
    shapes: tuple[Shape, ...],
    dtype: torch.dtype,
    ends: tuple[Layout, Layout],
    here: Layout,
    there: Layout,
) -> Iterator[Step]:
    rule = axis_rule(here, there) if here.mesh == there.mesh else None
    if rule is not None:
        yield Step(make_change(shapes, dtype, here, there), rule)
    at_an_end = here == ends[0] or there == ends[1]
    if rule is None and at_an_end and reductions_agree(here, there):
        yield Step(make_change(shapes, dtype, here, there), INTERSECTION)


@lru_cache(maxsize=4096)
def _states(shapes: tuple[Shape, ...], src: Layout, dst: Layout) -> tuple[Layout, ...]:
    """The layouts that a path may pass through, on the src's mesh and on the dst's."""
    plain: list[Placement] = [
        Broadcast(),
        *(Split(d) for d in _useful_dims(shapes, src, dst)),
    ]
    found: dict[Layout, None] = dict.fromkeys(
        [dst, *_representatives(shapes, src, dst)]
    )
    for mesh in dict.fromkeys((src.mesh, dst.mesh)):
        ends = [end for end in (src, dst) if end.mesh == mesh]
        options = [
            dict.fromkeys([*(end.placements[i] for end in ends), *plain])
            for i in range(len(mesh.axes))
        ]
        for placements in product(*options):
            found.update(dict.fromkeys(_layouts(mesh, placements)))
    return tuple(found)


def _layouts(mesh: Mesh, placements: tuple[Placement, ...]) -> Iterator[Layout]:
    """A placement per axis in every order of cuts; none if reductions or halos mix."""
    reductions = {p.reduction for p in placements if isinstance(p, Partial)}
    cut = [p.dim for p in placements if isinstance(p, Split)]
    halos = [p.dim for p in placements if isinstance(p, Split) and any(p.halo)]
    if len(reductions) > 1 or len(halos) > len(set(halos)):
        return
    if len(cut) == len(set(cut)):
        yield Layout(mesh, placements)
        return
    for order in permutations(mesh.axes):
        yield Layout(mesh, placements, order)


def _representatives(
    shapes: tuple[Shape, ...], src: Layout, dst: Layout
) -> Iterator[Layout]:
    """One rank for each part of the dst: terms go there first, then to its replicas.

    Of the ranks that shall hold a part, the one that holds most of its terms is chosen,
    so that each element is reduced where it is wanted. Needed where no layout of the
    whole mesh has that: (S(0), P) -> (B, S(0)) reduces on the mesh's diagonal.
    """
    mesh = dst.mesh
    kept = [i for i, p in enumerate(dst.placements) if not isinstance(p, Broadcast)]
    if not src.partial_axes or not kept or len(kept) == len(mesh.axes):
        return
    best: dict[tuple[int, ...], tuple[int, int]] = {}
    for rank in mesh.ranks:
        coordinate = tuple(mesh.coordinate(rank)[i] for i in kept)
        held = sum(_held(shape, src, dst, rank) for shape in shapes)
        if coordinate not in best or held > best[coordinate][0]:
            best[coordinate] = held, rank
    axes = ", ".join(f"{mesh.axes[i]}={mesh.sizes[i]}" for i in kept)
    chosen = Mesh(axes, [best[key][1] for key in sorted(best)])
    order = [axis for axis in dst.split_order if axis in chosen.axes]
    yield Layout(chosen, [dst.placements[i] for i in kept], order)


def _held(shape: Shape, src: Layout, dst: Layout, rank: int) -> int:
    """Elements of its new part that a rank holds (terms of)."""
    if rank not in src.mesh.ranks:
        return 0
    new, old = part_box(shape, dst, rank), part_box(shape, src, rank)
    return num_elements(intersect(new, old))


def _useful_dims(
    shapes: tuple[Shape, ...], src: Layout, dst: Layout
) -> tuple[int, ...]:
    """Dims worth splitting: those that either end splits, and the largest of all."""
    ends = (*src.placements, *dst.placements)
    dims = {p.dim for p in ends if isinstance(p, Split)}
    shared = min(map(len, shapes), default=0)
    sizes = [sum(shape[dim] for shape in shapes) for dim in range(shared)]
    if sizes:
        dims.add(sizes.index(max(sizes)))
    return tuple(sorted(dims))
