"""Pooling and resizing: batch and channels may be split; image dims with halos.

max_pool2d, avg_pool2d     S(0) -> S(0)     S(i, halo) -> S(i)
their backward             S(i), S(i, halo) -> S(i, adjoint halo)
adaptive pooling           S(i) -> S(i), where all windows have one size
others, upsampling         leading dims
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from placet.placement.layout import Layout, Shape
from placet.placement.placement import B, P, S, Split
from placet.program.functions.halo_pooling import (
    halo_avg_pool,
    halo_avg_pool_backward,
    halo_max_pool,
    halo_max_pool_backward,
)
from placet.program.rules.named import slots, value_of, with_values
from placet.program.rules.pattern import (
    Letter,
    Pattern,
    by_pattern,
    num_cuts,
    same_call,
)
from placet.program.rules.windows import Window
from placet.program.signature import Call, Operator, Parts, Rule, Signature

aten = torch.ops.aten


def _shapes(operator: Operator) -> tuple[Shape, Shape]:
    """Those of the input and of the output."""
    found = slots(operator)
    made = operator.outputs[0]
    if "grad_output" in found:
        made = operator.inputs[found["grad_output"]]
    assert made is not None
    return operator.inputs[found["self"]].shape, made.shape


@lru_cache(maxsize=4096)
def windows(operator: Operator) -> tuple[Window | None, ...]:
    """The windows of the last two dims; None for a dim that cannot be split."""
    x, y = _shapes(operator)
    kernel = _pair(value_of(operator, "kernel_size"), ())
    stride = _pair(value_of(operator, "stride", ()), kernel)
    padding = _pair(value_of(operator, "padding", 0), ())
    is_max = "max_pool" in str(operator.target)
    dilation = _pair(value_of(operator, "dilation", 1), ()) if is_max else (1, 1)
    found = (
        Window(*numbers)
        for numbers in zip(
            x[-2:], y[-2:], kernel, stride, padding, dilation, strict=True
        )
    )
    plain = is_max or _counts_padding(operator, padding)
    return tuple(w if plain and w.is_aligned and _is_full(w) else None for w in found)


def _pair(given: Any, default: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(given, int):
        return given, given
    values = tuple(given) or default
    return values * 2 if len(values) == 1 else values


def _counts_padding(operator: Operator, padding: Sequence[int]) -> bool:
    """Whether an average counts zeros of the padding as it does numbers."""
    includes = value_of(operator, "count_include_pad", True)
    return bool(includes) or not any(padding)


def _is_full(w: Window) -> bool:
    """Whether no window hangs over the end, as they may with ceil_mode."""
    return w.reads(0, w.size_out)[1] <= w.size_in + w.padding


def _signatures(operator: Operator) -> list[Signature]:
    x, _ = _shapes(operator)
    is_backward = "grad_output" in slots(operator)
    found: list[tuple[Split, Split]] = [
        (S(d), S(d)) for d in range(len(x) - 2) if x[d] > 1
    ]
    for dim, window in enumerate(windows(operator), len(x) - 2):
        if window is not None:
            found.append((S(dim, window.halo), S(dim)))
    made = []
    for src, dst in found:
        if is_backward:
            adjoint = Split(src.dim, src.halo, adjoint=any(src.halo))
            others = (dst,) * (len(operator.inputs) - 2)
            made.append(Signature((dst, src, *others), (adjoint,)))
        else:
            made.append(Signature((src,), (dst,) * len(operator.outputs)))
    if "avg_pool" in str(operator.target):
        made.append(_terms(operator))
    return made


def _terms(operator: Operator) -> Signature:
    """An average is linear; its backward, in the gradient."""
    return Signature((P(), *(B,) * (len(operator.inputs) - 1)), (P(),))


def _fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    found = slots(operator)
    grad = found.get("grad_output")
    x, y = inputs[found["self"]], outputs[0] if grad is None else inputs[grad]
    first = len(_shapes(operator)[0]) - 2
    return all(
        window is None or window.cuts_match(x, y, dim)
        for dim, window in enumerate(windows(operator), first)
    )


def _local(operator: Operator, parts: Parts) -> Call:
    """The operator on this rank's part, padded where windows of the whole reach out."""
    found = slots(operator)
    whole, _ = _shapes(operator)
    x = parts.input_box(operator, found["self"])
    grad = found.get("grad_output")
    y = parts.output_box(operator) if grad is None else parts.input_box(operator, grad)
    layout = parts.inputs[found["self"]]
    first, pads = [x[-2][0], x[-1][0]], [0, 0, 0, 0]
    padding = list(_pair(value_of(operator, "padding", 0), ()))
    is_cut = False
    for i, window in enumerate(windows(operator)):
        dim = len(whole) - 2 + i
        if window is not None and num_cuts(layout, dim) > 1:
            below, above = window.pads(x[dim], y[dim])
            pads[2 - 2 * i : 4 - 2 * i] = below, above
            first[i] = x[dim][0] - below
            padding[i], is_cut = 0, True
    if not is_cut:
        return same_call(operator)
    call = _complete(operator, tuple(padding))
    tensors = call.args
    if grad is None:
        where = (tensors[0], tuple(pads))
        if operator.target is aten.max_pool2d_with_indices.default:
            sizes = (tuple(first), whole[-1])
            return Call(halo_max_pool, (*where, *sizes, *call.args[1:]))
        return Call(halo_avg_pool, (operator.target, *where, *call.args[1:]))
    if "indices" in found:
        index = tensors[-1]
        begin = (x[-2][0], x[-1][0])
        return Call(halo_max_pool_backward, (*tensors[:2], index, begin, whole[-1]))
    return Call(
        halo_avg_pool_backward,
        (operator.target, *tensors[:2], tuple(pads), *tensors[2:]),
    )


def _complete(operator: Operator, padding: tuple[int, ...]) -> Call:
    """The operator with all of its arguments in order, and another padding."""
    target: Any = operator.target
    schema = target._schema.arguments
    args = [operator.argument(i, a.name, a.default_value) for i, a in enumerate(schema)]
    args[[a.name for a in schema].index("padding")] = padding
    # Defaults are lists, which have no hash.
    return Call(target, tuple(tuple(x) if isinstance(x, list) else x for x in args))


def _adaptive(operator: Operator) -> Pattern:
    """An output dim is split with the input's if it divides it."""
    x, y = _shapes(operator)
    dims: tuple[Letter, ...] = tuple(
        d if d < len(x) - 2 or (y[d] > 1 and x[d] % y[d] == 0) else None
        for d in range(len(x))
    )
    return Pattern((dims,) * len(operator.inputs), (dims,), linear=((0,),))


def _adaptive_fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    x, y = _shapes(operator)
    found = slots(operator)
    grad = found.get("grad_output")
    src, dst = inputs[found["self"]], outputs[0] if grad is None else inputs[grad]
    return all(
        Window(x[d], y[d], x[d] // y[d], x[d] // y[d], 0, 1).cuts_match(src, dst, d)
        for d in range(len(x) - 2, len(x))
        if y[d] and x[d] % y[d] == 0
    )


def _adaptive_local(operator: Operator, parts: Parts) -> Call:
    return with_values(operator, output_size=parts.output_shape(operator)[-2:])


def _outer(num_dims: int, *, linear: bool = False) -> Callable[[Operator], Pattern]:
    """Only dims before the last few may be split."""

    def pattern(operator: Operator) -> Pattern:
        rank = len(operator.inputs[0].shape)
        kept = rank - num_dims
        dims = tuple(d if d < kept else None for d in range(rank))
        groups = ((0,),) if linear else ()
        given, made = len(operator.inputs), len(operator.outputs)
        return Pattern((dims,) * given, (dims,) * made, linear=groups)

    return pattern


def _input_size(operator: Operator, parts: Parts) -> Call:
    return with_values(operator, input_size=parts.output_shape(operator))


WINDOWS = Rule(_signatures, _local, _fits)
IMAGE, LINEAR_IMAGE = by_pattern(_outer(2)), by_pattern(_outer(2, linear=True))
VOLUME, LINEAR_VOLUME = by_pattern(_outer(3)), by_pattern(_outer(3, linear=True))
RESIZED = by_pattern(_outer(2, linear=True), _input_size)

RULES: Mapping[Any, Rule] = {
    aten.max_pool2d_with_indices.default: WINDOWS,
    aten.max_pool2d_with_indices_backward.default: WINDOWS,
    aten.avg_pool2d.default: WINDOWS,
    aten.avg_pool2d_backward.default: WINDOWS,
    aten._adaptive_avg_pool2d.default: by_pattern(
        _adaptive, _adaptive_local, _adaptive_fits
    ),
    aten._adaptive_avg_pool2d_backward.default: by_pattern(
        _adaptive, None, _adaptive_fits
    ),
    aten.avg_pool1d.default: by_pattern(_outer(1, linear=True)),
    aten.adaptive_max_pool2d.default: IMAGE,
    aten.adaptive_max_pool2d_backward.default: IMAGE,
    aten.max_pool3d_with_indices.default: VOLUME,
    aten.max_pool3d_with_indices_backward.default: VOLUME,
    aten.avg_pool3d.default: LINEAR_VOLUME,
    aten.avg_pool3d_backward.default: LINEAR_VOLUME,
    aten._adaptive_avg_pool3d.default: LINEAR_VOLUME,
    aten._adaptive_avg_pool3d_backward.default: LINEAR_VOLUME,
    aten.upsample_nearest2d.default: LINEAR_IMAGE,
    aten.upsample_nearest2d.vec: LINEAR_IMAGE,
    aten.upsample_bilinear2d.default: LINEAR_IMAGE,
    aten.upsample_bilinear2d.vec: LINEAR_IMAGE,
    aten.upsample_bicubic2d.default: LINEAR_IMAGE,
    aten.upsample_nearest2d_backward.default: RESIZED,
    aten.upsample_bilinear2d_backward.default: RESIZED,
    aten.upsample_bicubic2d_backward.default: RESIZED,
}
