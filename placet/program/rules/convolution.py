"""Convolution: batch, channels, groups and, with halos, image dims may be split.

                 x, w, bias -> y                 grad, x, w -> dx, dw, db
batch            S(0), B, B -> S(0)              S(0), S(0), B -> S(0), P, P
out-channels     B, S(0), S(0) -> S(1)           S(1), B, S(0) -> P, S(0), S(0)
in-channels      S(1), S(1), P -> P              B, S(1), S(1) -> S(1), S(1), B
groups           S(1), S(0), S(0) -> S(1)        S(1), S(1), S(0) -> S(1), S(0), S(0)
image dim i      S(i, halo), B, B -> S(i)        S(i), S(i, halo), B
                                                          -> S(i, adjoint halo), P, P

All P are sums. A transposed convolution has the weight's dims exchanged, and no halos.
A rank pads its part with zeros at the borders of the whole only: a halo takes the place
of padding elsewhere.

    where halos begin and end        -> windows.Window
    the call with them               -> functions.halo_convolution

Source: Dryden et al. (arXiv:1903.06681), spatial and channel parallel convolution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from placet.placement.layout import Box, Layout, Shape
from placet.placement.placement import B, P, Partial, Placement, S, Split
from placet.program.functions.halo_convolution import (
    halo_convolution,
    halo_convolution_backward,
)
from placet.program.rules.named import slots, value_of, with_values
from placet.program.rules.pattern import num_cuts, same_cuts, split_sizes
from placet.program.rules.windows import Window
from placet.program.signature import Call, Operator, Parts, Rule, Signature

aten = torch.ops.aten


@dataclass(frozen=True)
class Conv:
    """A convolution's sizes, forward or backward.

    Args:
        x, weight, y: shapes; y is the output, or in the backward the gradient's.
        windows: one per image dim.
    """

    x: Shape
    weight: Shape
    y: Shape
    groups: int
    is_transposed: bool
    windows: tuple[Window, ...]


@lru_cache(maxsize=4096)
def conv_of(operator: Operator) -> Conv:
    """The sizes of an operator."""
    found = slots(operator)
    x, weight = (operator.inputs[found[name]].shape for name in ("input", "weight"))
    made = operator.outputs[0]
    if "grad_output" in found:
        made = operator.inputs[found["grad_output"]]
    assert made is not None
    num_dims = len(x) - 2
    stride, padding, dilation = (
        _per_dim(value_of(operator, name), num_dims)
        for name in ("stride", "padding", "dilation")
    )
    sizes = zip(
        *(x[2:], made.shape[2:], weight[2:], stride, padding, dilation), strict=True
    )
    return Conv(
        x,
        weight,
        made.shape,
        value_of(operator, "groups"),
        value_of(operator, "transposed"),
        tuple(Window(*numbers) for numbers in sizes),
    )


def _per_dim(values: Sequence[int], num_dims: int) -> tuple[int, ...]:
    return tuple(values) * (num_dims if len(values) == 1 else 1)


@dataclass(frozen=True)
class Way:
    """Placements of a convolution's tensors along one axis."""

    x: Placement
    weight: Placement
    bias: Placement
    y: Placement


def ways(conv: Conv) -> list[Way]:
    """The ways to divide a convolution, without all-B."""
    found = [Way(S(0), B, B, S(0))] if conv.x[0] > 1 else []
    of_out, of_in = (1, 0) if conv.is_transposed else (0, 1)
    if conv.groups == 1:
        if conv.y[1] > 1:
            found.append(Way(B, S(of_out), S(0), S(1)))
        if conv.x[1] > 1:
            found.append(Way(S(1), S(of_in), P(), P()))
    else:
        found.append(Way(S(1), S(0), S(0), S(1)))
    if not conv.is_transposed:
        found += [
            Way(S(dim, window.halo), B, B, S(dim))
            for dim, window in enumerate(conv.windows, 2)
            if window.is_aligned
        ]
    return found


def _forward(operator: Operator) -> list[Signature]:
    terms = [Way(P(), B, P(), P()), Way(B, P(), P(), P())]
    has_bias = "bias" in slots(operator)
    return [
        Signature((w.x, w.weight, w.bias) if has_bias else (w.x, w.weight), (w.y,))
        for w in (*ways(conv_of(operator)), *terms)
    ]


def _backward(operator: Operator) -> list[Signature]:
    """The forward's ways, with all that is P there B here and the other way round."""
    split = [
        Signature((dual(w.y), w.x, w.weight), (dual(w.x), dual(w.weight), dual(w.bias)))
        for w in ways(conv_of(operator))
    ]
    return [*split, Signature((P(), B, B), (P(), P(), P()))]


def dual(placement: Placement) -> Placement:
    """Where the gradient of a tensor is made, that is read in a placement."""
    match placement:
        case Split(dim, halo):
            return Split(dim, halo, adjoint=any(halo))
        case Partial():
            return B
        case _:
            return P()


def _layouts(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> tuple[Layout, Layout]:
    """Those of x and of y."""
    found = slots(operator)
    grad = found.get("grad_output")
    return inputs[found["input"]], outputs[0] if grad is None else inputs[grad]


def _fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    """Image parts stand for each other, and groups stay whole."""
    conv = conv_of(operator)
    x, y = _layouts(operator, inputs, outputs)
    if not all(w.cuts_match(x, y, dim) for dim, w in enumerate(conv.windows, 2)):
        return False
    if conv.groups == 1:
        return True
    return all(
        same_cuts((size, 1), (conv.groups, size // conv.groups), split_sizes(layout, 1))
        for size, layout in ((conv.x[1], x), (conv.y[1], y))
    )


def _boxes(operator: Operator, parts: Parts) -> tuple[Box, Box]:
    """A rank's parts of x and of y."""
    found = slots(operator)
    x = parts.input_box(operator, found["input"])
    if "grad_output" in found:
        return x, parts.input_box(operator, found["grad_output"])
    return x, parts.output_box(operator)


def _local_sizes(operator: Operator, parts: Parts) -> tuple[Call, list[int]]:
    """The same operator with this rank's sizes, and how to pad x before."""
    conv = conv_of(operator)
    layouts = _layouts(operator, parts.inputs, parts.outputs)
    x, y = _boxes(operator, parts)
    padding = [window.padding for window in conv.windows]
    pads: list[int] = []
    for i, window in enumerate(conv.windows):
        here = (0, 0)
        if num_cuts(layouts[1], i + 2) > 1:
            here = window.pads(x[i + 2], y[i + 2])
            padding[i] = 0
        pads = [*here, *pads]
    per_group = conv.x[1] // conv.groups
    groups = (x[1][1] - x[1][0]) // per_group if conv.groups > 1 else 1
    values: dict[str, Any] = {"padding": tuple(padding), "groups": groups}
    if "grad_output" in slots(operator) and value_of(operator, "bias_sizes"):
        values["bias_sizes"] = (y[1][1] - y[1][0],)
    return with_values(operator, **values), pads


def _forward_local(operator: Operator, parts: Parts) -> Call:
    call, pads = _local_sizes(operator, parts)
    if not any(pads):
        return call
    x, weight, bias, *conv = call.args
    return Call(halo_convolution, (x, weight, bias, tuple(pads), *conv))


def _backward_local(operator: Operator, parts: Parts) -> Call:
    call, pads = _local_sizes(operator, parts)
    if not any(pads):
        return call
    grad, x, weight, *conv = call.args
    return Call(halo_convolution_backward, (grad, x, weight, tuple(pads), *conv))


RULES: Mapping[Any, Rule] = {
    aten.convolution.default: Rule(_forward, _forward_local, _fits),
    aten.convolution_backward.default: Rule(_backward, _backward_local, _fits),
}
