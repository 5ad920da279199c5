"""Rules for operators without one of their own: DTensor's, then the decomposition's.

DTensor's ways are taken for operators that are not told any sizes, since it would call
them with those of the whole; where it says nothing of uneven parts, only with even
ones. Each is first tried on the shapes of parts: what the operator makes of them must
be the parts of what it makes of the whole. Ways that read partial values are left out:
some are wrong (P(max) -> P(max) of a Fourier transform, in torch 2.13).

The decomposition's are in `placet.program.rules.decomposed`.
"""

from dataclasses import replace
from typing import Any

from placet.placement.layout import Layout, Shape, box_shape, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Partial, Placement, S
from placet.program.graph import TensorMeta
from placet.program.rules.decomposed import RuleOf, decomposed_rule, metas_for
from placet.program.rules.pattern import Source, part_sizes, split_sizes
from placet.program.signature import Operator, Rule, Signature, Slot
from placet.torch_private.decompositions import OpOverload
from placet.torch_private.dtensor_rules import Kind, find_strategies
from placet.torch_private.random_operators import is_random

TWO = Mesh("x=2")
"""Each way is tried on the parts of two ranks."""

NO_SIZES = (
    *("dim", "dims", "dim0", "dim1", "dim2", "offset", "ord", "p", "reduction"),
    *("normalization", "interpolation_mode", "padding_mode"),
)
"""Whole numbers with these names are no sizes."""


def fallback_rule(operator: Operator, rule_of: RuleOf) -> tuple[Rule, Source] | None:
    """A rule found for an operator; None if there is none.

    Args:
        rule_of: finds the rules of what an operator is made of.
    """
    if not isinstance(operator.target, OpOverload):
        return None
    if operator.target._schema.is_mutable or is_random(operator.target):
        return None
    found = _dtensor_rule(operator)
    if found is not None:
        return found, "dtensor"
    apart = decomposed_rule(operator, rule_of)
    return None if apart is None else (apart, "decomposition")


def _dtensor_rule(operator: Operator) -> Rule | None:
    """DTensor's rule, if it can be taken as it is."""
    if _has_sizes(operator) or _has_lists(operator) or not operator.inputs:
        return None
    args, kwargs = metas_for(operator)
    found = find_strategies(operator.target, args, kwargs)
    if found is None:
        return None
    ways, uneven = found
    made = [_signature(operator, way) for way in ways]
    kept = tuple(s for s in made if s is not None and _keeps_shapes(operator, s))
    if not kept:
        return None
    return Rule(lambda _: kept, None, None if uneven else _is_even)


def _has_sizes(operator: Operator) -> bool:
    """Whether whole numbers among the arguments may be sizes."""
    target: Any = operator.target
    for i, argument in enumerate(target._schema.arguments):
        value = operator.argument(i, argument.name)
        values = value if isinstance(value, tuple) else (value,)
        number = any(isinstance(v, int) and not isinstance(v, bool) for v in values)
        if number and argument.name not in NO_SIZES:
            return True
    return False


def _has_lists(operator: Operator) -> bool:
    """Whether tensors come in lists, as in the fused steps of optimizers."""
    values = (*operator.args, *(v for _, v in operator.kwargs))
    return any(isinstance(v, tuple) and any(map(_is_slot, v)) for v in values)


def _is_slot(value: Any) -> bool:
    return isinstance(value, Slot)


def _signature(operator: Operator, way: list[Kind]) -> Signature | None:
    """A way as a signature; None if it has placements that we lack."""
    count = len(operator.outputs)
    if len(way) != count + len(operator.inputs):
        return None
    metas = (*operator.outputs, *operator.inputs)
    placed = [_placement(k, meta) for k, meta in zip(way, metas, strict=True)]
    known = [p for p in placed if p is not None]
    if len(known) < len(placed) or all(p == B for p in known):
        return None
    if any(isinstance(p, Partial) for p in known[count:]):
        return None
    return Signature(tuple(known[count:]), tuple(known[:count]))


def _placement(kind: Kind, meta: TensorMeta | None) -> Placement | None:
    name, value = kind
    match name:
        case "broadcast":
            return B
        case "split" if meta is not None:
            dim = value % max(1, len(meta.shape))
            return S(dim) if len(meta.shape) > dim and meta.shape[dim] > 1 else None
        case "partial" if value in ("sum", "max", "min"):
            return P(value)
    return None


def _keeps_shapes(operator: Operator, signature: Signature) -> bool:
    """Whether the operator makes, of parts, parts of what it makes of the whole."""
    inputs = [Layout(TWO, [p]) for p in signature.inputs]
    outputs = [Layout(TWO, [p]) for p in signature.outputs]
    metas = tuple(
        replace(meta, shape=_part(meta.shape, layout))
        for meta, layout in zip(operator.inputs, inputs, strict=True)
    )
    args, kwargs = metas_for(replace(operator, inputs=metas))
    try:
        made = operator.target(*args, **kwargs)
    except (RuntimeError, NotImplementedError, IndexError, ValueError):
        return False  # parts of these shapes do not go together
    results = made if isinstance(made, tuple | list) else (made,)
    return all(
        meta is None or tuple(result.shape) == _part(meta.shape, layout)
        for meta, layout, result in zip(operator.outputs, outputs, results, strict=True)
    )


def _part(shape: Shape, layout: Layout) -> Shape:
    return box_shape(part_box(shape, layout, 0))


def _is_even(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    metas = (*operator.inputs, *operator.outputs)
    return all(
        len(part_sizes(size, split_sizes(layout, dim))) == 1
        for meta, layout in zip(metas, (*inputs, *outputs), strict=True)
        if meta is not None
        for dim, size in enumerate(meta.shape)
    )
