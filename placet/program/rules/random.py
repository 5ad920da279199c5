"""Random operators: any dim may be split; each rank draws its part of the numbers.

rand(sizes)         -> S(j): this rank's sizes
bernoulli(x)        S(i) -> S(i)
native_dropout(x)   S(i) -> S(i), S(i)

A call says which global elements it draws (`Call.random_box`), so that a plan draws the
numbers of one device. Never P(sum): terms would be drawn apart. Operators whose numbers
are not one per element (randperm, multinomial) are whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from placet.placement.placement import B, S
from placet.program.rules.named import value_of, with_values
from placet.program.rules.pattern import (
    Local,
    Pattern,
    broadcast,
    by_pattern,
    same_call,
    whole,
)
from placet.program.signature import Call, Operator, Parts, Rule, Signature

aten = torch.ops.aten


def _drawn(call: Callable[[Operator, Parts], Call]) -> Local:
    """A local call that says which elements it draws."""

    def local(operator: Operator, parts: Parts) -> Call:
        return replace(call(operator, parts), random_box=parts.output_box(operator))

    return local


def _same(operator: Operator, parts: Parts) -> Call:
    del parts
    return same_call(operator)


def _sized(operator: Operator, parts: Parts) -> Call:
    return with_values(operator, size=parts.output_shape(operator))


def _like(operator: Operator) -> Pattern:
    inputs = broadcast([meta.shape for meta in operator.inputs])
    rank = max((len(meta.shape) for meta in operator.inputs), default=0)
    return Pattern(inputs, (tuple(range(rank)),) * len(operator.outputs))


def _from_sizes(operator: Operator) -> Sequence[Signature]:
    sizes = value_of(operator, "size")
    inputs = (B,) * len(operator.inputs)
    return [Signature(inputs, (S(j),)) for j, size in enumerate(sizes) if size > 1]


LIKE = by_pattern(_like, _drawn(_same))
SIZED = Rule(_from_sizes, _drawn(_sized))
WHOLE = Rule(whole, _drawn(_same))

RULES: Mapping[Any, Rule] = {
    aten.native_dropout.default: LIKE,
    aten.bernoulli.default: LIKE,
    aten.bernoulli.p: LIKE,
    aten.bernoulli.Tensor: LIKE,
    aten.rand_like.default: LIKE,
    aten.randn_like.default: LIKE,
    aten.randint_like.default: LIKE,
    aten.randint_like.low_dtype: LIKE,
    aten.uniform.default: LIKE,
    aten.normal_functional.default: LIKE,
    aten.normal.Tensor_float: LIKE,
    aten.normal.float_Tensor: LIKE,
    aten.normal.Tensor_Tensor: LIKE,
    aten.exponential.default: LIKE,
    aten.rand.default: SIZED,
    aten.randn.default: SIZED,
    aten.randint.default: SIZED,
    aten.randint.low: SIZED,
    aten.normal.float_float: SIZED,
    aten.randperm.default: WHOLE,
    aten.multinomial.default: WHOLE,
}
