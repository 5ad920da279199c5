"""Rules found by taking an operator apart into others that have rules.

    steps      what torch's decomposition calls, in order               -> steps_of
    ways       placements of the operator's inputs for which each step has a signature
               that reads its inputs as they are: nothing has to move   -> _search
    local      the steps, each as its own rule calls it on this rank    -> _local

An input's placement is that which the first step that reads it asks for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from placet.placement.layout import Layout, box_shape, part_box
from placet.placement.placement import B, Placement
from placet.program.graph import TensorMeta
from placet.program.rules.pattern import Source, same_call
from placet.program.signature import (
    Call,
    Operator,
    Parts,
    Rule,
    Signature,
    Slot,
    replicated_signature,
    target_name,
)
from placet.torch_private.decompositions import decompose
from placet.torch_private.random_operators import is_random

RuleOf: TypeAlias = Callable[[Operator], tuple[Rule, Source]]

MAX_STEPS = 60
MAX_TRIES = 4000
"""Signatures of steps that are tried for one operator."""

UNUSED = ("device", "layout", "pin_memory")
"""Arguments of steps that say where tensors are made: where the others are."""


@dataclass(frozen=True)
class Step:
    """One operator, and which values it reads and makes."""

    operator: Operator
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    returns_tuple: bool


@dataclass(frozen=True)
class Steps:
    """An operator taken apart: values are numbered, its inputs first.

    Args:
        outputs: of the operator, as values; None for what is no tensor.
    """

    steps: tuple[Step, ...]
    outputs: tuple[int | None, ...]
    returns_tuple: bool


Way: TypeAlias = tuple[Signature, ...]
"""One signature per step."""


def decomposed_rule(operator: Operator, rule_of: RuleOf) -> Rule | None:
    """A rule from an operator's decomposition; None if there is none that divides it.

    Args:
        rule_of: finds the rules of the steps.
    """
    steps = steps_of(operator)
    if steps is None:
        return None
    ways = _search(operator, steps, rule_of)
    if not ways:
        return None

    def fits(
        operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
    ) -> bool:
        return all(
            _step_fits(step, parts, rule_of)
            for step, parts in _placed(operator, steps, ways, Parts(inputs, outputs, 0))
        )

    def local(operator: Operator, parts: Parts) -> Call:
        return _local(operator, steps, ways, parts, rule_of)

    return Rule(lambda _: tuple(ways), local, fits)


def metas_for(operator: Operator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operator's arguments, with meta tensors."""

    def fill(value: Any) -> Any:
        if isinstance(value, Slot):
            meta = operator.inputs[value.index]
            return torch.empty(meta.shape, dtype=meta.dtype, device="meta")
        if isinstance(value, tuple):
            return [fill(item) for item in value]
        return value

    args = tuple(fill(value) for value in operator.args)
    return args, {name: fill(value) for name, value in operator.kwargs}


@lru_cache(maxsize=4096)
def steps_of(operator: Operator) -> Steps | None:
    """An operator taken apart; None if it cannot be."""
    args, kwargs = metas_for(operator)
    try:
        traced = decompose(operator.target, args, kwargs)  # type: ignore[arg-type]
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # a decomposition that asks for values, or for another device
    if traced is None:
        return None
    values: dict[Node, int] = {}
    steps: list[Step] = []
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = len(values)
        elif node.op == "call_function" and "val" not in node.meta:
            return None
        elif node.op == "call_function" and node.target is not getitem:
            steps.append(_step(node, values))
        elif node.op == "get_attr":
            return None
    (made,) = next(n for n in traced.graph.nodes if n.op == "output").args
    returns_tuple = isinstance(made, tuple | list)
    outputs = tuple(made) if returns_tuple else (made,)
    targets = [step.operator.target for step in steps]
    if len(steps) > MAX_STEPS or operator.target in targets:
        return None
    if any(is_random(t) for t in targets if hasattr(t, "tags")):
        return None
    return Steps(tuple(steps), tuple(values.get(n) for n in outputs), returns_tuple)


def _step(node: Node, values: dict[Node, int]) -> Step:
    """A node as a step; its results get the next numbers."""
    inputs: list[Node] = []

    def slot(value: Any) -> Any:
        if isinstance(value, Node):
            inputs.append(value)
            return Slot(len(inputs) - 1)
        if isinstance(value, tuple | list):
            return tuple(slot(item) for item in value)
        return value

    args = slot(tuple(node.args))
    kwargs = tuple((k, slot(v)) for k, v in node.kwargs.items() if k not in UNUSED)
    given = tuple(_meta(n.meta["val"]) for n in inputs)
    made = node.meta["val"]
    returns_tuple = isinstance(made, tuple | list)
    if returns_tuple:
        outputs: list[int | None] = [None] * len(made)
        for user in node.users:
            index = user.args[1]
            assert isinstance(index, int), user
            outputs[index] = values.setdefault(user, len(values))
    else:
        outputs = [values.setdefault(node, len(values))]
    metas = tuple(_meta(m) for m in (made if returns_tuple else [made]))
    operator = Operator(
        node.target,  # type: ignore[arg-type]
        args,
        kwargs,
        tuple(m for m in given if m is not None),
        metas,
    )
    return Step(
        operator, tuple(values[n] for n in inputs), tuple(outputs), returns_tuple
    )


def _meta(value: Any) -> TensorMeta | None:
    if not isinstance(value, Tensor):
        return None
    return TensorMeta(tuple(map(int, value.shape)), value.dtype)


def _search(
    operator: Operator, steps: Steps, rule_of: RuleOf
) -> Mapping[Signature, Way]:
    """Signatures of the operator, each with those of its steps."""
    found: dict[Signature, Way] = {}
    tries = iter(range(MAX_TRIES))
    options = [
        (
            replicated_signature(s.operator),
            *rule_of(s.operator)[0].signatures(s.operator),
        )
        for s in steps.steps
    ]
    for way, values in _extend(steps.steps, options, (), {}, tries):
        inputs = tuple(values.get(i, B) for i in range(len(operator.inputs)))
        outputs = tuple(B if i is None else values.get(i, B) for i in steps.outputs)
        signature = Signature(inputs, outputs)
        if not signature.is_replicated:
            found.setdefault(signature, way)
    return found


def _extend(
    steps: Sequence[Step],
    options: Sequence[Sequence[Signature]],
    way: Way,
    values: Mapping[int, Placement],
    tries: Iterator[int],
) -> Iterator[tuple[Way, Mapping[int, Placement]]]:
    """All ways that begin with these signatures, depth first."""
    if len(way) == len(steps):
        yield way, values
        return
    step = steps[len(way)]
    for signature in options[len(way)]:
        if next(tries, None) is None:
            return
        read = dict(zip(step.inputs, signature.inputs, strict=True))
        pairs = zip(step.inputs, signature.inputs, strict=True)
        if all(values.get(i, read[i]) == p for i, p in pairs):
            made = dict(zip(step.outputs, signature.outputs, strict=True))
            known = {
                **values,
                **read,
                **{i: p for i, p in made.items() if i is not None},
            }
            yield from _extend(steps, options, (*way, signature), known, tries)


def _placed(
    operator: Operator, steps: Steps, ways: Mapping[Signature, Way], parts: Parts
) -> Iterator[tuple[Step, Parts]]:
    """Each step, and where its tensors are."""
    mesh = (*parts.inputs, *parts.outputs)[0].mesh
    whole = tuple(replicated_signature(step.operator) for step in steps.steps)
    picked = []
    for axis in range(len(mesh.axes)):
        signature = Signature(
            tuple(layout.placements[axis] for layout in parts.inputs),
            tuple(layout.placements[axis] for layout in parts.outputs),
        )
        picked.append(whole if signature.is_replicated else ways[signature])
    for number, step in enumerate(steps.steps):
        mine = [way[number] for way in picked]
        inputs, outputs = (
            tuple(Layout(mesh, column) for column in zip(*rows, strict=True))
            for rows in ([s.inputs for s in mine], [s.outputs for s in mine])
        )
        yield step, Parts(inputs, outputs, parts.rank)


def _step_fits(step: Step, parts: Parts, rule_of: RuleOf) -> bool:
    """Whether a step's layouts go together, with something on every rank."""
    metas = (*step.operator.inputs, *step.operator.outputs)
    for meta, layout in zip(metas, (*parts.inputs, *parts.outputs), strict=True):
        if meta is not None and 0 not in meta.shape:
            boxes = (part_box(meta.shape, layout, r) for r in layout.mesh.ranks)
            if any(0 in box_shape(box) for box in boxes):
                return False
    fits = rule_of(step.operator)[0].fits
    return fits is None or fits(step.operator, parts.inputs, parts.outputs)


def _local(
    operator: Operator,
    steps: Steps,
    ways: Mapping[Signature, Way],
    parts: Parts,
    rule_of: RuleOf,
) -> Call:
    """All the steps as one call."""
    layouts = (*parts.inputs, *parts.outputs)
    if all(p == B for layout in layouts for p in layout.placements):
        return same_call(operator)
    calls = []
    for step, placed in _placed(operator, steps, ways, parts):
        local = rule_of(step.operator)[0].local
        call = same_call(step.operator)
        calls.append((step, call if local is None else local(step.operator, placed)))

    def run(*tensors: Tensor) -> Any:
        values: dict[int, Any] = dict(enumerate(tensors))
        for step, call in calls:
            given = [values[i] for i in step.inputs]
            kwargs = {name: _filled(value, given) for name, value in call.kwargs}
            made = call.target(*_filled(call.args, given), **kwargs)
            results = made if step.returns_tuple else (made,)
            pairs = zip(step.outputs, results, strict=True)
            values.update({i: result for i, result in pairs if i is not None})
        outputs = tuple(None if i is None else values[i] for i in steps.outputs)
        return outputs if steps.returns_tuple else outputs[0]

    run.__name__ = f"steps_of_{target_name(operator.target).replace('.', '_')}"
    return Call(run, tuple(Slot(i) for i in range(len(operator.inputs))))


def _filled(value: Any, inputs: Sequence[Tensor]) -> Any:
    if isinstance(value, Slot):
        return inputs[value.index]
    if isinstance(value, tuple):
        return tuple(_filled(item, inputs) for item in value)
    return value
