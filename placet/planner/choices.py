"""The ways to divide an operator over a mesh: a signature for each axis.

    choices = product over axes of the operator's signatures, less those
        whose layouts do not exist (two reductions, two halos on a dim)
        that leave a rank with an empty part
        that the operator's rule refuses for these sizes            -> rules.table.fits
        that leave an axis idle in a heavy operator                 -> _divided

# NOTE [Heavy operators divide their work]
Counted in bytes alone, the best plan is that every rank does everything: it moves
nothing. So an operator with floating point operations of its own (a product, a
convolution, attention) must divide them over every axis of the mesh, as far as it can
be divided at all. This belongs to the problem's definition, as in the lower bounds for
matrix products, which suppose an even share of the work. Light operators may be
replicated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from placet.boxing.routes import Domain
from placet.cost.compute import is_divided
from placet.cost.flops import flops
from placet.cost.objective import Objective
from placet.placement.layout import Layout, Shape
from placet.placement.mesh import Mesh
from placet.placement.placement import Partial, Placement, Split
from placet.planner.problem import Floats, Indices
from placet.program.rules.table import fits, signatures
from placet.program.signature import Operator, Signature

Placements = tuple[Placement, ...]
"""One per mesh axis."""


@dataclass(frozen=True, eq=False)
class Choices:
    """The choices of an operator; see `problem.Node` for the arrays."""

    signatures: tuple[tuple[Signature, ...], ...]
    input_layouts: Indices
    output_layouts: Indices
    costs: Floats


def find_choices(
    operator: Operator,
    mesh: Mesh,
    inputs: Sequence[Domain],
    outputs: Sequence[Domain | None],
    objective: Objective,
) -> Choices:
    """All ways to divide an operator over a mesh.

    Args:
        inputs, outputs: the domain of each of its tensors; None for what nobody reads.
    """
    found: list[tuple[Signature, ...]] = []
    layouts: list[tuple[tuple[Layout, ...], tuple[Layout, ...]]] = []
    for picked in product(signatures(operator), repeat=len(mesh.axes)):
        placed = _layouts(operator, mesh, picked)
        if placed is not None and fits(operator, *placed):
            found.append(picked)
            layouts.append(placed)
    kept = _divided(operator, found)
    found, layouts = [found[i] for i in kept], [layouts[i] for i in kept]
    return Choices(
        tuple(found),
        _indices([ins for ins, _ in layouts], inputs),
        _indices([outs for _, outs in layouts], outputs),
        np.array([objective.node_cost(operator, s, mesh) for s in found]),
    )


def _divided(
    operator: Operator, found: Sequence[tuple[Signature, ...]]
) -> Sequence[int]:
    """The choices that a heavy operator may take; see the note above."""
    if not flops(operator):
        return range(len(found))
    idle = [sum(not is_divided(s) for s in picked) for picked in found]
    return [i for i, count in enumerate(idle) if count == min(idle)]


def _layouts(
    operator: Operator, mesh: Mesh, picked: tuple[Signature, ...]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]] | None:
    """The layouts of an operator's tensors, or None if there are no such."""
    inputs, outputs = [], []
    for i, meta in enumerate(operator.inputs):
        layout = layout_of(mesh, tuple(s.inputs[i] for s in picked), meta.shape)
        if layout is None:
            return None
        inputs.append(layout)
    for i, made in enumerate(operator.outputs):
        shape = made.shape if made is not None else None
        layout = layout_of(mesh, tuple(s.outputs[i] for s in picked), shape)
        if layout is None:
            return None
        outputs.append(layout)
    return tuple(inputs), tuple(outputs)


@lru_cache(maxsize=1 << 18)
def layout_of(mesh: Mesh, placements: Placements, shape: Shape | None) -> Layout | None:
    """A layout in which every rank has a part of a tensor; None if there is none."""
    if not _is_layout(placements):
        return None
    if shape is not None and _has_empty_part(mesh, placements, shape):
        return None
    return Layout(mesh, placements)


def _is_layout(placements: Placements) -> bool:
    reductions = {p.reduction for p in placements if isinstance(p, Partial)}
    cut = [p.dim for p in placements if isinstance(p, Split)]
    halos = {p.dim for p in placements if isinstance(p, Split) and any(p.halo)}
    return len(reductions) <= 1 and all(cut.count(dim) == 1 for dim in halos)


def _has_empty_part(mesh: Mesh, placements: Placements, shape: Shape) -> bool:
    """Whether some rank would have nothing, by torch.chunk's rule."""
    sizes = [{n} for n in shape]  # of the parts that a dim is in so far
    for num_parts, placement in zip(mesh.sizes, placements, strict=True):
        if isinstance(placement, Split):
            if placement.dim >= len(shape):
                return True
            cut = sizes[placement.dim]
            cut = {end for n in cut for end in _part_sizes(n, num_parts)}
            if min(cut) < 1:
                return True
            sizes[placement.dim] = cut
    return False


def _part_sizes(n: int, num_parts: int) -> tuple[int, int]:
    """The largest and the smallest of n indices' parts."""
    step = -(-n // num_parts)
    return step, n - (num_parts - 1) * step


def _indices(
    layouts: Sequence[tuple[Layout, ...]], domains: Sequence[Domain | None]
) -> Indices:
    table = np.full((len(layouts), len(domains)), -1, dtype=np.int32)
    for j, domain in enumerate(domains):
        if domain is not None:
            table[:, j] = [domain.index(placed[j]) for placed in layouts]
    return table
