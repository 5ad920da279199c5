"""Pooling of a part that holds its neighbours' rows, a halo, in place of padding.

See `placet.program.functions.halo_convolution`. Maxima come with their indices in the
plane of the *whole* image; `first` and `width` say where a part lies in it.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def halo_avg_pool(target: Any, x: Tensor, pads: Sequence[int], *pool: object) -> Tensor:
    """An average pooling of x, padded with zeros first; `pool` from kernel_size on."""
    made: Tensor = target(aten.constant_pad_nd.default(x, pads, 0.0), *pool)
    return made


def halo_avg_pool_backward(
    target: Any, grad: Tensor, x: Tensor, pads: Sequence[int], *pool: object
) -> Tensor:
    """The gradient of the same, with the halo."""
    made = target(grad, aten.constant_pad_nd.default(x, pads, 0.0), *pool)
    cut: Tensor = aten.constant_pad_nd.default(made, [-n for n in pads], 0.0)
    return cut


def halo_max_pool(
    x: Tensor,
    pads: Sequence[int],
    first: tuple[int, int],
    width: int,
    *pool: object,
) -> tuple[Tensor, Tensor]:
    """Maxima over windows and their indices.

    Args:
        pads: of x; what is added is below all numbers.
        first: row and column, in the whole, of the padded part's first element.
        width: of the whole.
        pool: arguments from kernel_size on.
    """
    wide = aten.constant_pad_nd.default(x, pads, -inf)
    made, index = aten.max_pool2d_with_indices.default(wide, *pool)
    row = index.div(wide.shape[-1], rounding_mode="floor")
    column = index - row * wide.shape[-1]
    return made, (row + first[0]) * width + column + first[1]


def halo_max_pool_backward(
    grad: Tensor, x: Tensor, index: Tensor, first: tuple[int, int], width: int
) -> Tensor:
    """The gradient of the same, like x, with the halo.

    Args:
        index: of the maxima, in the plane of the whole.
        first: row and column, in the whole, of the part's first element.
        width: of the whole.
    """
    row = index.div(width, rounding_mode="floor")
    column = index - row * width - first[1]
    here = (row - first[0]) * x.shape[-1] + column
    made = grad.new_zeros(x.shape).flatten(-2)
    return made.scatter_add_(-1, here.flatten(-2), grad.flatten(-2)).view(x.shape)
