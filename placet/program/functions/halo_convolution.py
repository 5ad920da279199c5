"""Convolution of a part that holds its neighbours' rows, a halo, in place of padding.

    x                 this rank's rows and its halo; at the borders of the whole, less
    pad(x)            with zeros there, so that all that the outputs read is there
    conv(pad(x))      this rank's outputs, without further padding in that dim

The backward returns a gradient with the halo: what neighbours add to it is a term.
`pads` is as in torch's constant_pad_nd, last dim first; a negative one cuts off rows
that no output reads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

aten = torch.ops.aten


def halo_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], *conv: object
) -> Tensor:
    """aten.convolution of x, padded first; `conv` are its arguments from stride on."""
    wide = aten.constant_pad_nd.default(x, pads, 0.0)
    made: Tensor = aten.convolution.default(wide, weight, bias, *conv)
    return made


def halo_convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    pads: Sequence[int],
    *conv: object,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """aten.convolution_backward of the same; `conv` from bias_sizes on."""
    wide = aten.constant_pad_nd.default(x, pads, 0.0)
    grad_x, *others = aten.convolution_backward.default(grad, wide, weight, *conv)
    if grad_x is not None:
        grad_x = aten.constant_pad_nd.default(grad_x, [-n for n in pads], 0.0)
    return (grad_x, *others)
