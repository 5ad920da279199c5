"""Floating point operations of an operator; 0 for those that only touch memory.

    linear     2 x elements of the output x k
    contract   2 x i x j x all leading elements
    attention  on processors: 4 x heads x queries x keys x width; 2.5 times as many
               for its backward, which makes the weights once more
    others     torch's own formulas, by operator

Operators with a count above 0 are the heavy ones: their work must be divided.
"""

import math
from functools import lru_cache
from typing import Any

import torch

from placet.program.functions.linear import contract, linear
from placet.program.signature import Operator, Slot
from placet.torch_private.flops import flop_formula

_aten = torch.ops.aten
_ATTENTION: dict[Any, tuple[int, float]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1.0),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (1, 2.5),
}
"""Where the query stands among the inputs, and how often its products are made."""


@lru_cache(maxsize=1 << 16)
def flops(operator: Operator) -> int:
    """Floating point operations of the whole operator (a multiply and an add are 2)."""
    if operator.target is linear:
        meta = operator.outputs[0]
        assert meta is not None
        return 2 * math.prod(meta.shape) * operator.inputs[0].shape[-1]
    if operator.target is contract:
        a, b = operator.inputs
        return 2 * math.prod(a.shape) * b.shape[-1]
    if operator.target in _ATTENTION:
        first, times = _ATTENTION[operator.target]
        query, key, value = operator.inputs[first : first + 3]
        scores = math.prod(query.shape[:-1]) * key.shape[-2]
        return int(times * 2 * scores * (query.shape[-1] + value.shape[-1]))
    formula = flop_formula(operator.target)
    if formula is None:
        return 0
    args = _with_metas(operator, operator.args)
    kwargs = {name: _with_metas(operator, v) for name, v in operator.kwargs}
    made = [
        None if m is None else torch.empty(m.shape, dtype=m.dtype, device="meta")
        for m in operator.outputs
    ]
    return int(formula(*args, **kwargs, out_val=made[0] if len(made) == 1 else made))


def _with_metas(operator: Operator, value: Any) -> Any:
    """Arguments with meta tensors for slots."""
    if isinstance(value, Slot):
        meta = operator.inputs[value.index]
        return torch.empty(meta.shape, dtype=meta.dtype, device="meta")
    if isinstance(value, tuple):
        return tuple(_with_metas(operator, item) for item in value)
    return value
