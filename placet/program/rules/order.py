"""Operators along one dim, which stays whole: sort, topk, cumsum, searchsorted.

sort, topk, argsort, cumsum(dim)     S(other) -> S(other)
cumsum                               P(sum) -> P(sum)
searchsorted(sorted, x)              B, S(i) -> B, S(i)
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from placet.program.rules.pattern import (
    Letter,
    Pattern,
    by_pattern,
    dims_of,
    normal_dims,
)
from placet.program.signature import Operator, Rule

aten = torch.ops.aten


def _along(index: int, default: Any = -1, *, linear: bool = False) -> Rule:
    """All outputs and inputs have the same dims, but perhaps the named one's size."""

    def pattern(operator: Operator) -> Pattern:
        rank = len(operator.inputs[0].shape)
        named = normal_dims(operator.argument(index, "dim", default), rank)
        dims: tuple[Letter, ...] = tuple(None if i in named else i for i in range(rank))
        return Pattern(
            (dims,) * len(operator.inputs),
            (dims,) * len(operator.outputs),
            linear=((0,),) if linear else (),
        )

    return by_pattern(pattern)


def _searched(position: int) -> Callable[[Operator], Pattern]:
    """Values that are looked up in one whole, sorted row, one by one.

    Args:
        position: of the values among the inputs.
    """

    def pattern(operator: Operator) -> Pattern:
        shapes = [meta.shape for meta in operator.inputs]
        values = dims_of(position, shapes[position])
        inputs = tuple(
            values if i == position else (None,) * len(shape)
            for i, shape in enumerate(shapes)
        )
        alone = len(shapes[1 - position]) == 1
        made = values if alone else (None,) * len(values)
        return Pattern(inputs if alone else (made,) * 2, (made,))

    return pattern


def _rows_searched(operator: Operator) -> Pattern:
    """searchsorted(rows, values): in one row, or in a row for each of the values'."""
    rows, values = (meta.shape for meta in operator.inputs[:2])
    if len(operator.inputs) == 2 and len(rows) == 1:
        return _searched(1)(operator)
    dims: tuple[Letter, ...] = (*range(len(rows) - 1), None)
    others = ((*dims,),) * (len(operator.inputs) - 2)
    made = dims if len(values) == len(rows) else (None,) * len(values)
    return Pattern((dims, made, *others), (made,))


RULES: Mapping[Any, Rule] = {
    aten.sort.default: _along(1),
    aten.sort.stable: _along(2),
    aten.argsort.default: _along(1),
    aten.argsort.stable: _along(2),
    aten.topk.default: _along(2),
    aten.cumsum.default: _along(1, linear=True),
    aten.cumprod.default: _along(1),
    aten.logcumsumexp.default: _along(1),
    aten.cummax.default: _along(1),
    aten.cummin.default: _along(1),
    aten.glu.default: _along(1),
    aten.glu_backward.default: _along(2, linear=True),
    aten.bucketize.Tensor: by_pattern(_searched(0)),
    aten.searchsorted.Tensor: by_pattern(_rows_searched),
}
