"""Reductions: a dim that stays may be split; one that is reduced, if terms combine.

sum(dims)     S(kept) -> S;  S(reduced) -> P(sum);  P(sum) -> P(sum)
mean(dims)    likewise: a rank's sum, divided by the count of the whole
amax, amin    S(reduced) -> P(max), P(min)
var, norm, argmax, max with indices, any, all     only dims that stay
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from placet.placement.placement import Reduction, Split
from placet.program.rules.pattern import (
    Letter,
    Pattern,
    by_pattern,
    normal_dims,
    same_call,
)
from placet.program.signature import Call, Operator, Parts, Rule

aten = torch.ops.aten

Dims = Callable[[Operator], Any]
"""Finds the argument that says which dims are reduced; None for all."""


def _all(_: Operator) -> Any:
    return None


def _dims(index: int, name: str = "dim") -> Dims:
    return lambda operator: operator.argument(index, name)


def _keeps(index: int) -> Callable[[Operator], bool]:
    return lambda operator: bool(operator.argument(index, "keepdim", False))


def _drops(_: Operator) -> bool:
    return False


def _letters(
    operator: Operator, dims: Dims, keeps: Callable[[Operator], bool]
) -> tuple[tuple[Letter, ...], tuple[Letter, ...]]:
    """Letters of the input and of an output."""
    rank = len(operator.inputs[0].shape)
    reduced = normal_dims(dims(operator), rank)
    kept = keeps(operator)
    made: tuple[Letter, ...] = tuple(
        None if i in reduced else i for i in range(rank) if kept or i not in reduced
    )
    return tuple(range(rank)), made


def _reducing(
    reduction: Reduction,
    dims: Dims,
    keeps: Callable[[Operator], bool] = _drops,
    local: Callable[[Operator, Parts], Call] | None = None,
    *,
    linear: bool = True,
) -> Rule:
    """Where terms combine."""

    def pattern(operator: Operator) -> Pattern:
        given, made = _letters(operator, dims, keeps)
        groups = ((0,),) if linear else ()
        return Pattern((given,), (made,), reduction=reduction, linear=groups)

    return by_pattern(pattern, local)


def _keeping(dims: Dims, keeps: Callable[[Operator], bool] = _drops) -> Rule:
    """Where only dims that stay may be split."""

    def pattern(operator: Operator) -> Pattern:
        given, made = _letters(operator, dims, keeps)
        reduced = [i for i in given if i not in made]
        given = tuple(None if i in reduced else i for i in given)
        return Pattern((given,), (made,) * len(operator.outputs))

    return by_pattern(pattern)


def divided_sum(
    x: torch.Tensor, dims: Any, keepdim: bool, count: int, dtype: torch.dtype | None
) -> torch.Tensor:
    """sum(x) / count: a rank's term of a mean over `count` numbers."""
    return torch.sum(x, dims, keepdim=keepdim, dtype=dtype) / count


def _mean(dims: Dims, keeps: Callable[[Operator], bool]) -> Rule:
    def local(operator: Operator, parts: Parts) -> Call:
        shape = operator.inputs[0].shape
        reduced = normal_dims(dims(operator), len(shape))
        layout = parts.inputs[0]
        cut = {p.dim for p in layout.placements if isinstance(p, Split)}
        if not cut & set(reduced):
            return same_call(operator)
        count = math.prod(shape[dim] for dim in reduced)
        dtype = dict(operator.kwargs).get("dtype")
        keepdim = keeps(operator)
        return Call(divided_sum, (operator.args[0], reduced, keepdim, count, dtype))

    return _reducing("sum", dims, keeps, local)


def _histogram(operator: Operator) -> Pattern:
    """Counts of each rank's numbers add up, if the range is given."""
    given: tuple[Letter, ...] = tuple(range(len(operator.inputs[0].shape)))
    low, high = operator.argument(2, "min", 0), operator.argument(3, "max", 0)
    return Pattern((given,), ((None,),), "sum" if low < high else None)


RULES: Mapping[Any, Rule] = {
    aten.sum.default: _reducing("sum", _all),
    aten.sum.dim_IntList: _reducing("sum", _dims(1), _keeps(2)),
    aten.nansum.default: _keeping(_dims(1), _keeps(2)),
    aten.mean.default: _mean(_all, _drops),
    aten.mean.dim: _mean(_dims(1), _keeps(2)),
    aten.amax.default: _reducing("max", _dims(1), _keeps(2), linear=False),
    aten.amin.default: _reducing("min", _dims(1), _keeps(2), linear=False),
    aten.max.default: _reducing("max", _all, linear=False),
    aten.min.default: _reducing("min", _all, linear=False),
    aten.max.dim: _keeping(_dims(1), _keeps(2)),
    aten.min.dim: _keeping(_dims(1), _keeps(2)),
    aten.argmax.default: _keeping(_dims(1), _keeps(2)),
    aten.argmin.default: _keeping(_dims(1), _keeps(2)),
    aten.count_nonzero.default: _reducing("sum", _all, linear=False),
    aten.count_nonzero.dim_IntList: _reducing("sum", _dims(1), linear=False),
    aten.histc.default: by_pattern(_histogram),
    aten.prod.default: _keeping(_all),
    aten.any.default: _keeping(_all),
    aten.all.default: _keeping(_all),
    aten.prod.dim_int: _keeping(_dims(1), _keeps(2)),
    aten.any.dim: _keeping(_dims(1), _keeps(2)),
    aten.any.dims: _keeping(_dims(1), _keeps(2)),
    aten.all.dim: _keeping(_dims(1), _keeps(2)),
    aten.all.dims: _keeping(_dims(1), _keeps(2)),
    aten.logsumexp.default: _keeping(_dims(1), _keeps(2)),
    aten.var.correction: _keeping(_dims(1), _keeps(9)),
    aten.std.correction: _keeping(_dims(1), _keeps(9)),
    aten.std_mean.correction: _keeping(_dims(1), _keeps(9)),
    aten.var_mean.correction: _keeping(_dims(1), _keeps(9)),
    aten.linalg_vector_norm.default: _keeping(_dims(2), _keeps(3)),
    aten.median.dim: _keeping(_dims(1), _keeps(2)),
    aten.kthvalue.default: _keeping(_dims(2), _keeps(3)),
}
