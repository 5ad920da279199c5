"""Batch normalisation in training, in steps whose sums may be partial.

    sums      = (sum of x, sum of x^2) for each channel      -> batch_sums
    mean, var = moments of sums over count values            -> batch_moments
    y         = (x - mean) / sqrt(var + eps) * weight + bias -> batch_norm_apply
    grad_sums = (sum of g, sum of g xhat) for each channel   -> batch_norm_grad_sums
    dx        = weight / sqrt(var + eps) (g - mean(g) - xhat mean(g xhat))
                                                             -> batch_norm_gradient

`count` is of the global batch, so parts of it give the same result as the whole. Sums
are float64: the difference of two large ones becomes the variance.

Source: Ioffe and Szegedy (arXiv:1502.03167).
"""

import torch
from torch import Tensor


def batch_sums(x: Tensor) -> Tensor:
    """x (N, C, ...) -> (2, C): sums of values and of squares, float64."""
    wide = x.double()
    dims = _dims(x)
    return torch.stack([wide.sum(dims), wide.square().sum(dims)])


def batch_moments(sums: Tensor, count: float) -> Tensor:
    """(2, C) sums -> (2, C): mean and biased variance, float64."""
    mean = sums[0] / count
    return torch.stack([mean, (sums[1] / count - mean.square()).clamp_min_(0)])


def batch_norm_apply(
    x: Tensor, moments: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """x (N, C, ...) normalised by moments (2, C), scaled and shifted."""
    factor = (moments[1] + eps).rsqrt()
    if weight is not None:
        factor = factor * weight
    shift = -moments[0] * factor
    if bias is not None:
        shift = shift + bias
    wide = _precise(x)
    made = wide * _wide(factor, wide) + _wide(shift, wide)
    return made.to(x.dtype)


def batch_norm_grad_sums(
    grad: Tensor, x: Tensor, moments: Tensor, eps: float
) -> Tensor:
    """-> (2, C): sums of the gradient and of gradient times normalised x, float64."""
    dims = _dims(x)
    wide, centred = grad.double(), x.double()
    mean, factor = moments[0], (moments[1] + eps).rsqrt()
    centred = centred - _wide(mean, centred)
    return torch.stack([wide.sum(dims), (wide * centred).sum(dims) * factor])


def batch_norm_gradient(
    grad: Tensor,
    x: Tensor,
    moments: Tensor,
    grad_sums: Tensor,
    weight: Tensor | None,
    count: float,
    eps: float,
) -> Tensor:
    """The gradient of x, like x."""
    mean, factor = moments[0], (moments[1] + eps).rsqrt()
    slope = grad_sums[1] / count * factor
    offset = grad_sums[0] / count - mean * slope
    scale = factor if weight is None else factor * weight
    wide = _precise(x)
    inner = grad - wide * _wide(slope, wide) - _wide(offset, wide)
    return (inner * _wide(scale, wide)).to(x.dtype)


def _dims(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _precise(x: Tensor) -> Tensor:
    """Half-precision values as float32: scale and shift nearly cancel."""
    return x.float() if x.dtype.itemsize < 4 else x


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """(C,) as (1, C, 1, ...), in the dtype of the other."""
    return values.to(like.dtype).view(1, -1, *([1] * (like.dim() - 2)))


def moved_average(
    running: Tensor, moments: Tensor, row: int, gain: float, momentum: float
) -> Tensor:
    """A running statistic (C,) moved towards a row of the moments (2, C)."""
    return running * (1 - momentum) + (moments[row] * gain).to(running.dtype)


def row_of(pair: Tensor, row: int, dtype: torch.dtype) -> Tensor:
    """A row of (2, C), in a dtype."""
    return pair[row].to(dtype)
