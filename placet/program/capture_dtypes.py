"""Dtypes that kernels give and fake tensors of torch 2.13 have wrong.

    norm of a bfloat16 x with float32 weights, on CPUs:
        y bfloat16, mean and 1/std float32            torch's fake ones: bfloat16
        its gradient of x bfloat16 (group norm)       torch's fake one: float32

What a plan sends and holds is counted by dtype, so the fake ones are put right. Their
copies (detach) are, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from placet.program.graph import Op, Ref, TensorMeta

aten = torch.ops.aten

_WEIGHT_OF_NORM: Mapping[Any, int] = {
    aten.native_layer_norm.default: 2,
    aten.native_group_norm.default: 1,
    aten.native_batch_norm.default: 1,
    aten._native_batch_norm_legit.no_stats: 1,
    aten._native_batch_norm_legit_functional.default: 1,
}
"""Norms whose first argument is x -> the place of their weight."""

_COPIES = {aten.detach.default, aten.alias.default}


def correct_dtypes(op: Op, tensors: dict[str, TensorMeta]) -> None:
    """Put an operator's outputs right in `tensors`."""
    if op.target in _WEIGHT_OF_NORM:
        weight = op.args[_WEIGHT_OF_NORM[op.target]]
        if isinstance(weight, Ref):
            _set(op.outputs[1:3], tensors[weight.name].dtype, tensors)
    elif op.target is aten.native_group_norm_backward.default:
        _set(op.outputs[:1], tensors[op.inputs[1]].dtype, tensors)
    elif op.target in _COPIES:
        _set(op.outputs, tensors[op.inputs[0]].dtype, tensors)


def _set(
    names: tuple[str | None, ...], dtype: torch.dtype, tensors: dict[str, TensorMeta]
) -> None:
    for name in names:
        if name is not None:
            tensors[name] = replace(tensors[name], dtype=dtype)
