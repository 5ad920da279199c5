"""Losses: elements may be split, the vocabulary too where a loss comes in steps.

mse_loss(x, y), mean      S(i), S(i) -> P(sum): a rank's sum over the count of the whole
its backward              B, S(i), S(i) -> S(i)
nll_loss, summed          S(0), S(0) -> P(sum), P(sum); as a mean not: it divides by the
                          weight of all targets
its backward              B, S(0), S(0), B -> S(0)
cross-entropy in steps    rows S(i) -> S(i);  vocabulary S(last) -> P(sum), with the
                          offset of this rank's part
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from placet.placement.placement import Split
from placet.program.functions.loss import (
    cross_entropy_gradient,
    exp_sum,
    target_logit,
)
from placet.program.functions.mean_loss import gradient_of_mean, term_of_mean
from placet.program.rules.named import by_names, slots, value_of
from placet.program.rules.pattern import (
    Letter,
    Pattern,
    by_pattern,
    num_cuts,
    same_call,
)
from placet.program.signature import Call, Operator, Parts, Rule

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2
"""Reductions of losses, as torch numbers them."""

Letters = tuple[Letter, ...]


def _aligned(operator: Operator) -> dict[str, Letters]:
    """Letters of tensors that broadcast to the largest among them, by name."""
    shapes = {name: operator.inputs[i].shape for name, i in slots(operator).items()}
    rank = max(map(len, shapes.values()))
    sizes = [
        max(shape[d - rank] for shape in shapes.values() if len(shape) >= rank - d)
        for d in range(rank)
    ]
    return {
        name: tuple(
            d if size == sizes[d] else None
            for d, size in enumerate(shape, rank - len(shape))
        )
        for name, shape in shapes.items()
    }


def _elementwise(operator: Operator) -> Pattern:
    """A loss of elements: as it is, or summed over all."""
    dims = _aligned(operator)
    if value_of(operator, "reduction", MEAN) == NONE:
        rank = max(map(len, dims.values()))
        return by_names(operator, dims, (tuple(range(rank)),))
    return by_names(operator, dims, ((),), reduction="sum")


def _elementwise_backward(operator: Operator) -> Pattern:
    dims = _aligned(operator)
    return by_names(operator, dims, (dims["self"],), linear=(("grad_output",),))


def _is_cut(parts: Parts) -> bool:
    layouts = (*parts.inputs, *parts.outputs)
    return any(isinstance(p, Split) for x in layouts for p in x.placements)


def _count(operator: Operator) -> int:
    return math.prod(operator.inputs[slots(operator)["self"]].shape)


def _mean_local(operator: Operator, parts: Parts) -> Call:
    if not _is_cut(parts) or value_of(operator, "reduction", MEAN) != MEAN:
        return same_call(operator)
    call = _summing(operator)
    return Call(
        term_of_mean, (operator.target, _count(operator), *call.args), call.kwargs
    )


def _mean_backward_local(operator: Operator, parts: Parts) -> Call:
    if not _is_cut(parts) or value_of(operator, "reduction", MEAN) != MEAN:
        return same_call(operator)
    call = _summing(operator)
    return Call(
        gradient_of_mean, (operator.target, _count(operator), *call.args), call.kwargs
    )


def _summing(operator: Operator) -> Call:
    """The same loss, summed; all of its arguments in order."""
    target: Any = operator.target
    schema = target._schema.arguments
    args = [operator.argument(i, a.name, a.default_value) for i, a in enumerate(schema)]
    names = [a.name for a in schema]
    args[names.index("reduction")] = SUM
    return Call(target, tuple(args))


ELEMENTWISE = by_pattern(_elementwise, _mean_local)
ELEMENTWISE_BACKWARD = by_pattern(_elementwise_backward, _mean_backward_local)


def _classes(operator: Operator) -> tuple[Letters, Letters]:
    """Letters of scores (N, C, ...) or (C,) and of targets (N, ...) or ()."""
    rank = len(operator.inputs[slots(operator)["self"]].shape)
    targets = tuple(d for d in range(rank) if d != 1) if rank > 1 else ()
    scores = tuple(None if d == 1 or rank == 1 else d for d in range(rank))
    return scores, targets


def _nll(operator: Operator) -> Pattern:
    scores, targets = _classes(operator)
    inputs = {"self": scores, "target": targets}
    match value_of(operator, "reduction"):
        case 0:
            return by_names(operator, inputs, (targets, ()), reduction="sum")
        case 1:  # a sum over the weight of all targets
            return by_names(operator, {}, ((), ()))
        case _:
            return by_names(operator, inputs, ((), ()), reduction="sum")


def _nll_backward(operator: Operator) -> Pattern:
    scores, targets = _classes(operator)
    inputs = {"self": scores, "target": targets}
    if value_of(operator, "reduction") == NONE:
        inputs["grad_output"] = targets
    return by_names(operator, inputs, (scores,), linear=(("grad_output",),))


def _rows(operator: Operator) -> tuple[Letters, Letters]:
    """Letters of logits (..., V) and of a number per row."""
    rows = tuple(range(len(operator.inputs[0].shape) - 1))
    return (*rows, "v"), rows


def _exp_sum(operator: Operator) -> Pattern:
    logits, rows = _rows(operator)
    return Pattern((logits, rows), (rows,), "sum")


def _target_logit(operator: Operator) -> Pattern:
    logits, rows = _rows(operator)
    return Pattern((logits, rows), (rows,), "sum", linear=((0,),))


def _gradient(operator: Operator) -> Pattern:
    logits, rows = _rows(operator)
    return Pattern((logits, rows, rows, rows, ()), (logits,), linear=((4,),))


def _with_offset(operator: Operator, parts: Parts) -> Call:
    last = len(operator.inputs[0].shape) - 1
    if num_cuts(parts.inputs[0], last) == 1:
        return same_call(operator)
    offset, _ = parts.input_box(operator, 0)[last]
    kwargs = {**dict(operator.kwargs), "offset": offset}
    return Call(operator.target, operator.args, tuple(kwargs.items()))


_NLL = by_pattern(_nll)
_NLL_BACKWARD = by_pattern(_nll_backward)

RULES: Mapping[Any, Rule] = {
    aten.mse_loss.default: ELEMENTWISE,
    aten.smooth_l1_loss.default: ELEMENTWISE,
    aten.huber_loss.default: ELEMENTWISE,
    aten.soft_margin_loss.default: ELEMENTWISE,
    aten.binary_cross_entropy.default: ELEMENTWISE,
    aten.binary_cross_entropy_with_logits.default: ELEMENTWISE,
    aten.mse_loss_backward.default: ELEMENTWISE_BACKWARD,
    aten.smooth_l1_loss_backward.default: ELEMENTWISE_BACKWARD,
    aten.huber_loss_backward.default: ELEMENTWISE_BACKWARD,
    aten.soft_margin_loss_backward.default: ELEMENTWISE_BACKWARD,
    aten.binary_cross_entropy_backward.default: ELEMENTWISE_BACKWARD,
    aten.nll_loss_forward.default: _NLL,
    aten.nll_loss2d_forward.default: _NLL,
    aten.nll_loss_backward.default: _NLL_BACKWARD,
    aten.nll_loss2d_backward.default: _NLL_BACKWARD,
    exp_sum: by_pattern(_exp_sum),
    target_logit: by_pattern(_target_logit, _with_offset),
    cross_entropy_gradient: by_pattern(_gradient, _with_offset),
}
