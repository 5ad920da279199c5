"""Tensors from nothing: any dim of them may be split.

full(sizes, value)            -> S(j): this rank's sizes; zeros are P(sum), too
full_like(x, value)           S(i) -> S(i), B -> S(i); what x holds does not matter
new_zeros(x, sizes)           B -> S(j)
arange(start, end, step)      -> S(0): whole numbers from this rank's first one on
eye, constants                whole
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from placet.placement.placement import B, P, Placement, S
from placet.program.functions.constant import constant
from placet.program.rules.pattern import WHOLE, Local, with_argument, with_sizes
from placet.program.signature import Call, Operator, Parts, Rule, Signature

aten = torch.ops.aten

Value = Callable[[Operator], Any]
"""What an operator fills its output with; None if that does not matter."""


def _nothing(_: Operator) -> Any:
    return None


def _zero(_: Operator) -> Any:
    return 0


def _one(_: Operator) -> Any:
    return 1


def _argument(index: int) -> Value:
    return lambda operator: operator.argument(index, "fill_value")


def _makes(operator: Operator, value: Value) -> list[Placement]:
    """Placements in which an output can be filled with a value; B is the first."""
    made = operator.outputs[0]
    if made is None:
        return [B]
    splits = [S(j) for j, size in enumerate(made.shape) if size > 1]
    filled = value(operator)
    terms = not isinstance(filled, bool) and filled == 0 and made.dtype != torch.bool
    return [B, *splits, *([P()] if terms else [])]


def _filling(value: Value, local: Local) -> Rule:
    """Without tensors among the inputs."""

    def signatures(operator: Operator) -> list[Signature]:
        inputs = (B,) * len(operator.inputs)
        return [Signature(inputs, (dst,)) for dst in _makes(operator, value)]

    return Rule(signatures, local)


def _like(value: Value, local: Local) -> Rule:
    """An input gives the dtype, or the sizes: where it is does not matter."""

    def signatures(operator: Operator) -> list[Signature]:
        given, made = operator.inputs[0], operator.outputs[0]
        found = [Signature((B,), (dst,)) for dst in _makes(operator, value)]
        if made is not None and made.shape == given.shape:
            splits = [S(i) for i, size in enumerate(given.shape) if size > 1]
            found += [Signature((src,), (src,)) for src in splits]
        terms = [] if given.dtype == torch.bool else [Signature((P(),), (B,))]
        return [*found, *terms]

    return Rule(signatures, local)


def _like_local(operator: Operator, parts: Parts) -> Call:
    """The same operator on a part of the input's sizes, or on the output's."""
    given, sizes = operator.args[0], parts.output_shape(operator)
    made, src = operator.outputs[0], parts.input_box(operator, 0)
    assert made is not None
    if tuple(stop - start for start, stop in src) == sizes:
        return Call(operator.target, operator.args, operator.kwargs)
    kwargs = tuple(kw for kw in operator.kwargs if kw[0] != "memory_format")
    return Call(_NEW[operator.target], (given, sizes, *operator.args[1:]), kwargs)


_NEW: Mapping[Any, Any] = {
    aten.full_like.default: aten.new_full.default,
    aten.zeros_like.default: aten.new_zeros.default,
    aten.ones_like.default: aten.new_ones.default,
    aten.empty_like.default: aten.new_empty.default,
}
"""What makes a tensor of other sizes than the input's."""


def _packed(operator: Operator, parts: Parts) -> Call:
    """new_empty_strided: a part has strides of its own, without gaps."""
    args = (operator.args[0], parts.output_shape(operator))
    return Call(aten.new_empty.default, args, operator.kwargs)


def _start_and_step(operator: Operator) -> tuple[Any, Any]:
    numbers = [x for x in operator.args if isinstance(x, int | float)]
    start = numbers[0] if len(numbers) > 1 else 0
    return start, numbers[2] if len(numbers) > 2 else 1


def _counts(operator: Operator) -> list[Signature]:
    """Only of whole numbers: others depend on how they are rounded on the way."""
    made = operator.outputs[0]
    whole = all(isinstance(x, int) for x in operator.args)
    if made is None or made.shape[0] < 2 or not whole:
        return []
    return [Signature((), (S(0),))]


def _count_local(operator: Operator, parts: Parts) -> Call:
    start, step = _start_and_step(operator)
    ((first, last),) = parts.output_box(operator)
    args = (start + first * step, start + last * step, step)
    made = operator.outputs[0]
    assert made is not None
    kwargs = dict(operator.kwargs) | {"dtype": made.dtype}
    return Call(aten.arange.start_step, args, tuple(kwargs.items()))


def _iota_local(operator: Operator, parts: Parts) -> Call:
    ((first, last),) = parts.output_box(operator)
    start = operator.argument(1, "start") + first * operator.argument(2, "step")
    call = with_argument(operator, 0, "length", last - first)
    kwargs = dict(call.kwargs) | {"start": start}
    return Call(call.target, call.args, tuple(kwargs.items()))


_SIZES = with_sizes(0, "size")
_NEW_SIZES = with_sizes(1, "size")
_COUNT = Rule(_counts, _count_local)

RULES: Mapping[Any, Rule] = {
    constant: WHOLE,
    aten.scalar_tensor.default: WHOLE,
    aten.eye.default: WHOLE,
    aten.eye.m: WHOLE,
    aten.linspace.default: WHOLE,
    aten.tril_indices.default: WHOLE,
    aten.triu_indices.default: WHOLE,
    aten.full.default: _filling(_argument(1), _SIZES),
    aten.zeros.default: _filling(_zero, _SIZES),
    aten.ones.default: _filling(_one, _SIZES),
    aten.empty.memory_format: _filling(_nothing, _SIZES),
    aten.full_like.default: _like(_argument(1), _like_local),
    aten.zeros_like.default: _like(_zero, _like_local),
    aten.ones_like.default: _like(_one, _like_local),
    aten.empty_like.default: _like(_nothing, _like_local),
    aten.new_full.default: _like(_argument(2), _NEW_SIZES),
    aten.new_zeros.default: _like(_zero, _NEW_SIZES),
    aten.new_ones.default: _like(_one, _NEW_SIZES),
    aten.new_empty.default: _like(_nothing, _NEW_SIZES),
    aten.new_empty_strided.default: _like(_nothing, _packed),
    aten.arange.default: _COUNT,
    aten.arange.start: _COUNT,
    aten.arange.start_step: _COUNT,
    torch.ops.prims.iota.default: Rule(_counts, _iota_local),
}
