"""Normalisation: what is not averaged over may be split, and so may a step's sums.

layer norm, rms norm     leading dims; backward: weight and bias gradients are P(sum)
group norm               batch; channels in whole groups
batch norm               channels; with running statistics each dim
  in steps               batch_sums: N and H, W split -> P(sum); C split -> S(1)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from placet.placement.layout import Layout
from placet.placement.placement import B, Partial, Placement
from placet.program.functions.batch_norm import (
    batch_moments,
    batch_norm_apply,
    batch_norm_grad_sums,
    batch_norm_gradient,
    batch_sums,
    moved_average,
    row_of,
)
from placet.program.rules.named import by_names, value_of, with_values
from placet.program.rules.pattern import (
    Letter,
    Pattern,
    by_letters,
    by_pattern,
    same_cuts,
    split_sizes,
)
from placet.program.signature import Call, Operator, Parts, Rule, Signature

aten = torch.ops.aten

Letters = tuple[Letter, ...]


def _leading(operator: Operator) -> tuple[Letters, Letters]:
    """Letters of a tensor whose last dims are normalised, and of its statistics."""
    rank = len(operator.inputs[0].shape)
    outer = rank - len(value_of(operator, "normalized_shape"))
    dims = tuple(i if i < outer else None for i in range(rank))
    return dims, dims


def _layer_norm(operator: Operator) -> Pattern:
    dims, stats = _leading(operator)
    outputs = (dims,) + (stats,) * (len(operator.outputs) - 1)
    return by_names(operator, {"input": dims}, outputs)


def _layer_norm_backward(operator: Operator) -> Pattern:
    dims, stats = _leading(operator)
    inputs = {"grad_out": dims, "input": dims, "mean": stats, "rstd": stats}
    outputs = (dims,) + ((),) * (len(operator.outputs) - 1)
    return by_names(operator, inputs, outputs, reduction="sum", linear=(("grad_out",),))


_IMAGE: Letters = ("n", "c")


def _image(operator: Operator) -> Letters:
    """Letters of x (N, C, ...)."""
    return _IMAGE + tuple(range(2, len(operator.inputs[0].shape)))


def _group_norm(operator: Operator) -> Pattern:
    dims = _IMAGE + (None,) * (len(operator.inputs[0].shape) - 2)
    inputs = {"input": dims, "weight": ("c",), "bias": ("c",)}
    return by_names(operator, inputs, (dims, _IMAGE, _IMAGE))


def _group_norm_backward(operator: Operator) -> Pattern:
    dims = _IMAGE + (None,) * (len(operator.inputs[0].shape) - 2)
    inputs = {"grad_out": dims, "input": dims, "mean": _IMAGE, "rstd": _IMAGE}
    return by_names(
        operator,
        {**inputs, "weight": ("c",)},
        (dims, ("c",), ("c",)),
        reduction="sum",
        linear=(("grad_out",),),
    )


def _group_local(operator: Operator, parts: Parts) -> Call:
    """Group norm is told its sizes: the part's batch, channels and groups."""
    (n0, n1), (c0, c1), *_ = parts.input_box(operator, 0)
    per_group = value_of(operator, "C") // value_of(operator, "group")
    return with_values(operator, N=n1 - n0, C=c1 - c0, group=(c1 - c0) // per_group)


def _whole_groups(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    channels, groups = value_of(operator, "C"), value_of(operator, "group")
    cuts = split_sizes(inputs[0], 1)
    return same_cuts((channels, 1), (groups, channels // groups), cuts)


_STATS = ("running_mean", "running_var", "save_mean", "save_invstd")
_CHANNELS: Mapping[str, Letters] = dict.fromkeys(("weight", "bias", *_STATS), ("c",))


def _batch_norm(flag: str | None) -> Rule:
    """Forward; `flag` names the argument that asks for the batch's statistics.

    Without them what comes back beside the result is what was given, or is empty.
    """

    def signatures(operator: Operator) -> Sequence[Signature]:
        dims = _image(operator)
        if uses_batch := flag is not None and value_of(operator, flag):
            dims = tuple(x if x == "c" else None for x in dims)
        outputs = (dims,) + (("c",),) * (len(operator.outputs) - 1)
        reduction = None if uses_batch else "sum"
        inputs = {**_CHANNELS, "input": dims}
        found = by_names(operator, inputs, outputs, reduction=reduction)
        return [
            Signature(s.inputs, (s.outputs[0], *_without_sums(s.outputs[1:])))
            for s in found.signatures(operator)
        ]

    return Rule(signatures)


def _without_sums(placements: Sequence[Placement]) -> list[Placement]:
    return [B if isinstance(p, Partial) else p for p in placements]


def _batch_norm_backward(operator: Operator) -> Pattern:
    dims = _image(operator)
    if value_of(operator, "train"):
        dims = tuple(x if x == "c" else None for x in dims)
    inputs = {**_CHANNELS, "grad_out": dims, "input": dims}
    outputs = (dims, ("c",), ("c",))
    linear = (("grad_out",),)
    return by_names(operator, inputs, outputs, reduction="sum", linear=linear)


_PAIR: Letters = (None, "c")
_STEP: Mapping[str, Letters] = {"moments": _PAIR, "grad_sums": _PAIR, **_CHANNELS}


def _step(*linear: Sequence[str], sums: bool = False) -> Rule:
    """A step of batch norm on x (N, C, ...): makes sums, or what is like x."""

    def pattern(operator: Operator) -> Pattern:
        dims = _image(operator)
        inputs = {**_STEP, "x": dims, "grad": dims}
        outputs = (_PAIR if sums else dims,)
        reduction = "sum" if sums else None
        return by_names(operator, inputs, outputs, reduction=reduction, linear=linear)

    return by_pattern(pattern)


RULES: Mapping[Any, Rule] = {
    aten.native_layer_norm.default: by_pattern(_layer_norm),
    aten.native_layer_norm_backward.default: by_pattern(_layer_norm_backward),
    aten._fused_rms_norm.default: by_pattern(_layer_norm),
    aten._fused_rms_norm_backward.default: by_pattern(_layer_norm_backward),
    aten.native_group_norm.default: by_pattern(
        _group_norm, _group_local, _whole_groups
    ),
    aten.native_group_norm_backward.default: by_pattern(
        _group_norm_backward, _group_local, _whole_groups
    ),
    aten.native_batch_norm.default: _batch_norm("training"),
    aten._native_batch_norm_legit.no_stats: _batch_norm("training"),
    aten._native_batch_norm_legit_functional.default: _batch_norm("training"),
    aten._native_batch_norm_legit_no_training.default: _batch_norm(None),
    aten.native_batch_norm_backward.default: by_pattern(_batch_norm_backward),
    batch_sums: _step(sums=True),
    batch_moments: by_letters(". c -> . c"),
    batch_norm_apply: _step(),
    batch_norm_grad_sums: _step(("grad",), sums=True),
    batch_norm_gradient: _step(("grad", "grad_sums")),
    moved_average: by_letters("c, . c -> c"),
    row_of: by_letters(". c -> c", linear=((0,),)),
}
