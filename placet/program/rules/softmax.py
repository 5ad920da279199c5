"""Softmax: any dim but the one that is normalised may be split.

_softmax(x, 1)                     S(0) -> S(0)
_softmax_backward_data(g, y, 1)    S(0), S(0) -> S(0);  P, B -> P
"""

from collections.abc import Mapping
from typing import Any

import torch

from placet.program.rules.pattern import Letter, Pattern, by_pattern, normal_dim
from placet.program.signature import Operator, Rule

aten = torch.ops.aten


def _others(operator: Operator, dim: int) -> tuple[Letter, ...]:
    """Letters of all dims but one."""
    rank = len(operator.inputs[0].shape)
    named = normal_dim(dim, rank)
    return tuple(None if i == named else i for i in range(rank))


def _forward(operator: Operator) -> Pattern:
    dims = _others(operator, operator.argument(1, "dim"))
    return Pattern((dims,), (dims,))


def _backward(operator: Operator) -> Pattern:
    dims = _others(operator, operator.argument(2, "dim"))
    return Pattern((dims, dims), (dims,), linear=((0,),))


RULES: Mapping[Any, Rule] = {
    aten._softmax.default: by_pattern(_forward),
    aten._log_softmax.default: by_pattern(_forward),
    aten._safe_softmax.default: by_pattern(_forward),
    aten._softmax_backward_data.default: by_pattern(_backward),
    aten._log_softmax_backward_data.default: by_pattern(_backward),
}
