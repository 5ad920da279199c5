"""Random numbers of operators that a backward computes once more: drawn once.

    forward    mask = bernoulli(p);   y = x mask
    backward   mask' = bernoulli(p);  y' = x' mask'      -> y' = x' mask

A checkpoint region must draw the same numbers when it is computed again. Its masks (and
what else its random operators return) are therefore kept from the forward; everything
else of it is computed again. What is the same value is found by value numbers: an
operator that is computed again on equal values is equal to its first one.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from placet.program.graph import Graph, Op, Ref, replace_refs
from placet.torch_private.dispatch import OpOverload
from placet.torch_private.random_operators import is_random

aten = torch.ops.aten
_SAME = {aten.detach.default, aten.alias.default}


def share_random(graph: Graph, recomputed: Collection[str]) -> Graph:
    """The graph with the random operators of its checkpoint regions drawn once.

    Args:
        graph: with ops in the order in which they were traced.
        recomputed: names of the ops that repeat one of the forward.
    """
    if not recomputed:
        return graph
    values: dict[str, str] = {}
    first: dict[object, list[str]] = {}
    seen: Counter[object] = Counter()
    ops: dict[str, Op] = {}
    renamed: dict[str, str] = {}
    for traced in graph.ops:
        op = _renamed(traced, renamed)
        if op.target in _SAME and op.outputs[0] is not None:
            values[op.outputs[0]] = values.get(op.inputs[0], op.inputs[0])
        key = _key(op, values)
        if traced.name not in recomputed:
            first.setdefault(key, []).append(op.name)
        elif key in first:
            alike = first[key]
            source = ops[alike[seen[key] % len(alike)]]
            seen[key] += 1
            if draws(op):
                ops[source.name] = _shared(source, op, renamed)
                continue
            values.update(_paired(op, source))
        ops[op.name] = op
    return replace(graph, ops=tuple(ops.values()))


def draws(op: Op) -> bool:
    """Whether an operator draws random numbers, with the arguments that it has."""
    if not isinstance(op.target, OpOverload) or not is_random(op.target):
        return False
    arguments = op.target._schema.arguments
    given = {a.name: a.default_value for a in arguments}
    given |= dict(zip(given, op.args, strict=False)) | dict(op.kwargs)
    return bool(given.get("dropout_p", 1.0) != 0.0)


def _key(op: Op, values: Mapping[str, str]) -> object:
    """Equal for operators that compute the same, if they draw nothing."""

    def value(ref: Ref) -> Ref:
        return Ref(values.get(ref.name, ref.name))

    kwargs = tuple((name, replace_refs(v, value)) for name, v in op.kwargs)
    return op.target, replace_refs(op.args, value), kwargs


def _renamed(op: Op, names: Mapping[str, str]) -> Op:
    def current(ref: Ref) -> Ref:
        return Ref(names.get(ref.name, ref.name))

    kwargs = tuple((name, replace_refs(v, current)) for name, v in op.kwargs)
    return replace(op, args=replace_refs(op.args, current), kwargs=kwargs)


def _paired(op: Op, source: Op) -> dict[str, str]:
    pairs = zip(op.outputs, source.outputs, strict=True)
    return {new: old for new, old in pairs if new is not None and old is not None}


def _shared(source: Op, op: Op, renamed: dict[str, str]) -> Op:
    """The first operator, with the outputs that only the later one was read for."""
    renamed.update(_paired(op, source))
    pairs = zip(source.outputs, op.outputs, strict=True)
    return replace(source, outputs=tuple(old or new for old, new in pairs))
