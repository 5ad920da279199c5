"""Run a boxing's plan for all ranks in one thread, step by step, and judge the result.

`value_of` is the meaning of a layout, written as a plain definition: it knows nothing
of rules, moves or paths, and is what boxings are compared with.
"""

import math
from collections import defaultdict
from itertools import product

import torch
from torch import Tensor

from placet.boxing.execute import start
from placet.boxing.plan import BoxingPlan, lower_step, plan_boxing
from placet.placement.layout import Box, Layout, Shape, box_shape, part_box, relative
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Partial, Placement, Reduction, S, Split
from placet.wire.twin import Twin

Parts = dict[int, Tensor]
"""A local tensor per rank."""

NEUTRAL = {"sum": 0.0, "avg": 0.0, "max": -math.inf, "min": math.inf}


def layouts(
    mesh: Mesh, reduction: Reduction = "sum", num_dims: int = 2
) -> list[Layout]:
    """Every layout over {S(0), S(1), ..., B, P} on a mesh, in the mesh's own order."""
    options: list[Placement] = [*map(S, range(num_dims)), B, P(reduction)]
    return [Layout(mesh, p) for p in product(options, repeat=len(mesh.axes))]


def parts_of(shape: Shape, layout: Layout, seed: int = 0) -> Parts:
    """Random whole numbers in a layout: equal on replicas, different terms."""
    generator = torch.Generator().manual_seed(seed)
    terms: dict[tuple[int, ...], Tensor] = {}
    parts = {}
    for rank in layout.mesh.ranks:
        key = _term(layout, rank)
        if key not in terms:
            terms[key] = torch.randint(-9, 10, shape, generator=generator).double()
        parts[rank] = cut(terms[key], part_box(shape, layout, rank)).clone()
    return parts


def value_of(parts: Parts, shape: Shape, layout: Layout) -> Tensor:
    """The global tensor that parts in a layout stand for.

    Raises AssertionError where a part has the wrong shape or replicas differ.
    """
    reduction = layout.reduction or "sum"
    terms: dict[tuple[int, ...], Tensor] = {}
    written: dict[tuple[int, ...], Tensor] = defaultdict(lambda: torch.zeros(shape))
    for rank in layout.mesh.ranks:
        key, box = _term(layout, rank), part_box(shape, layout, rank)
        assert tuple(parts[rank].shape) == box_shape(box), f"rank {rank}: wrong part"
        if key not in terms:
            terms[key] = torch.full(shape, NEUTRAL[reduction], dtype=torch.float64)
        target, seen = cut(terms[key], box), cut(written[key], box)
        same = torch.where(seen > 0, target, parts[rank].double())
        torch.testing.assert_close(parts[rank].double(), same, msg="replicas differ")
        target.copy_(parts[rank])
        seen.fill_(1)
    for key, seen in written.items():
        overlapping = any(isinstance(p, Split) and p.adjoint for p in layout.placements)
        assert overlapping or bool((seen == 1).all()), f"term {key} has holes"
    stacked = torch.stack(list(terms.values()))
    if reduction in ("sum", "avg"):
        averaged = zip(layout.placements, layout.mesh.sizes, strict=True)
        return stacked.sum(0) / math.prod(n for p, n in averaged if p == P("avg"))
    return stacked.amax(0) if reduction == "max" else stacked.amin(0)


def run_all(plan: BoxingPlan, *tensors: Parts) -> list[Parts]:
    """Run a plan for all ranks; the bytes on the wire must be the predicted ones."""
    num_ranks = 1 + max(*plan.src.mesh.ranks, *plan.dst.mesh.ranks)
    twin = Twin(num_ranks, timeout_seconds=5)
    ranks = range(num_ranks)
    wires = [twin.wire(rank) for rank in ranks]
    now = [
        tuple(parts[rank] for parts in tensors) if rank in plan.src.mesh.ranks else ()
        for rank in ranks
    ]
    sent, received = [0] * num_ranks, [0] * num_ranks
    for i, step in enumerate(plan.steps):
        pending = [
            start(lower_step(step, r), now[r], wires[r], key=f"{i}") for r in ranks
        ]
        now = [p.finish() for p in pending]
        for rank in ranks:
            future = pending[rank].future
            if future is not None:
                sent[rank] += future.traffic().sent_bytes
                received[rank] += future.traffic().received_bytes
    assert sent == [plan.sent_bytes(rank) for rank in ranks]
    assert received == [plan.received_bytes(rank) for rank in ranks]
    assert sum(received) == sum(s.rule.received_bytes(s.change) for s in plan.steps)
    return [
        {rank: now[rank][i] for rank in plan.dst.mesh.ranks}
        for i in range(len(tensors))
    ]


def check(shape: Shape, src: Layout, dst: Layout) -> BoxingPlan:
    """Box random parts, and compare with what both layouts mean."""
    parts = parts_of(shape, src)
    plan = plan_boxing((shape,), torch.float64, src, dst)
    expected = value_of(parts, shape, src)
    (found,) = run_all(plan, parts)
    value = value_of(found, shape, dst)
    assert torch.equal(value, expected) or torch.allclose(value, expected), (
        f"{src!r} -> {dst!r} of {shape} by {plan!r}"
    )
    return plan


def total_received(plan: BoxingPlan) -> int:
    """Bytes that all ranks receive."""
    ranks = {*plan.src.mesh.ranks, *plan.dst.mesh.ranks}
    return sum(plan.received_bytes(rank) for rank in ranks)


def cut(tensor: Tensor, box: Box) -> Tensor:
    """A box of a global tensor."""
    return tensor[relative(box, tuple((0, 0) for _ in box))]


def _term(layout: Layout, rank: int) -> tuple[int, ...]:
    pairs = zip(layout.mesh.coordinate(rank), layout.placements, strict=True)
    return tuple(
        c
        for c, p in pairs
        if isinstance(p, Partial) or (isinstance(p, Split) and p.adjoint)
    )
