"""Pointwise operators: any dim may be split; the linear ones pass P(sum).

    relu    S(i) -> S(i)
    add     S(i), S(j) -> S(max(i, j)), aligned as they broadcast;  P, P -> P
    mul     P, B -> P;  B, P -> P
    where   B, P, P -> P
    gelu_backward(grad, x)    P, B -> P

Every aten operator that carries torch.Tag.pointwise has this rule without being listed;
LINEAR says in which inputs an operator is linear, OTHERS are those without the tag.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import torch

from placet.placement.placement import B, P, S
from placet.program.rules.pattern import Pattern, broadcast, by_pattern
from placet.program.signature import Operator, Rule, Signature, Slot

aten = torch.ops.aten

Groups: TypeAlias = tuple[Collection[int], ...]
"""Sets of inputs that may be P(sum) together."""


def _tensors(operator: Operator, *indices: int) -> bool:
    """Whether these arguments are tensors."""
    return all(isinstance(operator.argument(i, ""), Slot) for i in indices)


def _sum(operator: Operator) -> Groups:
    """a + b: linear in both together, if both are tensors."""
    return ((0, 1),) if _tensors(operator, 0, 1) else ()


def _product(operator: Operator) -> Groups:
    """a * b: linear in each."""
    return tuple((i,) for i in range(len(operator.inputs)))


def _first(operator: Operator) -> Groups:
    """Linear in the first argument."""
    return ((0,),) if _tensors(operator, 0) else ()


def _second(operator: Operator) -> Groups:
    """Linear in the second argument, the first being B."""
    return ((1,),)


def _quotient(operator: Operator) -> Groups:
    rounds = dict(operator.kwargs).get("rounding_mode") is not None
    return () if rounds else _first(operator)


def _chosen(_: Operator) -> Groups:
    """where(mask, x, y): linear in x and y together."""
    return ((1, 2),)


def _filled(operator: Operator) -> Groups:
    return ((0,),) if operator.argument(2, "value") == 0 else ()


def _converted(operator: Operator) -> Groups:
    """A change of dtype, as long as no digits are cut off: not to whole numbers."""
    src, made = operator.inputs[0].dtype, operator.outputs[0]
    if made is None or src == torch.bool:
        return ()
    return ((0,),) if made.dtype == src or made.dtype.is_floating_point else ()


def _added_product(_: Operator) -> Groups:
    """x + a * b: linear in x and a, and in x and b."""
    return (0, 1), (0, 2)


LINEAR: Mapping[Any, Callable[[Operator], Groups]] = {
    aten.add.Tensor: _sum,
    aten.sub.Tensor: _sum,
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _first,
    aten.div.Tensor: _first,
    aten.div.Scalar: _first,
    aten.div.Tensor_mode: _quotient,
    aten.true_divide.Tensor: _first,
    aten.neg.default: _first,
    aten.positive.default: _first,
    aten.clone.default: _first,
    aten.alias.default: _first,
    aten.detach.default: _first,
    aten.lift_fresh_copy.default: _first,
    aten.contiguous.default: _first,
    aten._to_copy.default: _converted,
    torch.ops.prims.convert_element_type.default: _converted,
    aten.where.self: _chosen,
    aten.masked_fill.Scalar: _filled,
    aten.addcmul.default: _added_product,
    aten.lerp.Scalar: _sum,
    aten.copy.default: _second,
    aten.deg2rad.default: _first,
    aten.rad2deg.default: _first,
    aten.threshold_backward.default: _first,
    aten.gelu_backward.default: _first,
    aten.silu_backward.default: _first,
    aten.mish_backward.default: _first,
    aten.tanh_backward.default: _first,
    aten.sigmoid_backward.default: _first,
    aten.softplus_backward.default: _first,
    aten.softshrink_backward.default: _first,
    aten.hardshrink_backward.default: _first,
    aten.hardtanh_backward.default: _first,
    aten.hardswish_backward.default: _first,
    aten.hardsigmoid_backward.default: _first,
    aten.leaky_relu_backward.default: _first,
    aten.elu_backward.default: _first,
    aten.logit_backward.default: _first,
    aten.native_dropout_backward.default: _first,
}
"""Operator -> the inputs in which it is linear."""

OTHERS: tuple[Any, ...] = (
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.contiguous.default,
    aten._to_copy.default,
    torch.ops.prims.convert_element_type.default,
    aten.copy.default,
    aten.hardswish.default,
    aten.log_sigmoid.default,
    aten.masked_fill.Tensor,
    aten.mish_backward.default,
    aten.softplus_backward.default,
    aten.softshrink_backward.default,
    aten.hardshrink_backward.default,
    aten.hardtanh_backward.default,
    aten.hardswish_backward.default,
    aten.hardsigmoid_backward.default,
    aten.leaky_relu_backward.default,
    aten.elu_backward.default,
    aten.native_dropout_backward.default,
    aten.isin.Tensor_Scalar,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.polar.default,
    aten.complex.default,
    aten._prelu_kernel.default,
)
"""Pointwise operators that do not carry the tag."""


def is_pointwise(target: Any) -> bool:
    """Whether an operator works element by element, with broadcasting."""
    if target in OTHERS:
        return True
    tagged = torch.Tag.pointwise in getattr(target, "tags", ())
    return tagged and not target._schema.is_mutable


def pattern(operator: Operator) -> Pattern:
    """Letters as the inputs broadcast."""
    inputs = broadcast([meta.shape for meta in operator.inputs])
    rank = max((len(meta.shape) for meta in operator.inputs), default=0)
    outputs = (tuple(range(rank)),) * len(operator.outputs)
    find = LINEAR.get(operator.target)
    return Pattern(inputs, outputs, linear=() if find is None else find(operator))


POINTWISE = by_pattern(pattern)
"""The rule of all pointwise operators."""


def _log_sigmoid(operator: Operator) -> list[Signature]:
    """The second output, for the backward, is empty on a GPU."""
    shape, saved = operator.inputs[0].shape, operator.outputs[1]
    alike = saved is None or saved.shape == shape
    splits = [S(i) for i, size in enumerate(shape) if size > 1]
    return [Signature((s,), (s, s if alike else B)) for s in splits]


def _log_sigmoid_backward(operator: Operator) -> list[Signature]:
    grad, _, saved = operator.inputs
    alike = saved.shape == grad.shape
    splits = [S(i) for i, size in enumerate(grad.shape) if size > 1]
    found = [Signature((s, s, s if alike else B), (s,)) for s in splits]
    return [*found, Signature((P(), B, B), (P(),))]


RULES: Mapping[Any, Rule] = dict.fromkeys((*LINEAR, *OTHERS), POINTWISE) | {
    aten.log_sigmoid_forward.default: Rule(_log_sigmoid),
    aten.log_sigmoid_backward.default: Rule(_log_sigmoid_backward),
}
