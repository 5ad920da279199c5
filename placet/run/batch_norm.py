"""Batch normalisation by the statistics of the whole batch, wherever its rows are.

    N, S1, S2 = sum over ranks of  n, n d, M2 + n d^2     -> _global_statistics
                n rows x places, d = local mean - shift, M2 = local sum of squares
    mean = shift + S1 / N,  var = S2 / N - (S1 / N)^2
    y  = (x - mean) invstd w + b                          -> _Normalise.forward
    dx = w invstd (dy - sum dy / N - xhat sum(dy xhat) / N)   -> _Normalise.backward

One boxing P(sum) -> B a layer in forward and one in backward. M2 is taken about the
local mean and the sums in float64 about a shift all ranks share (the running mean): a
mean 10^4 deviations from it costs 8 of the 16 digits. Rows of weight 0 (a dummy part
where a rank has no rows) count for nothing, in both directions.

Each rank's cotangents must already carry its share of the global loss. With
accumulation the batch is a micro-batch over all ranks.

Source: Ioffe and Szegedy (arXiv:1502.03167); statistics merged as in Chan, Golub and
LeVeque (1979).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ReduceSum = Callable[[Tensor, str], Tensor]
"""(this rank's term, a name equal on all ranks) -> the ranks' sum: P(sum) -> B."""

_TINY = 1e-30


@dataclass(frozen=True)
class Reduction:
    """How one layer's statistics are summed over the ranks.

    Args:
        reduce_sum: carries the sums; every rank calls it, dummies too.
        name: the layer's name in this forward; ".forward" or ".backward" is added.
        is_dummy: this rank's rows are not of the batch.
    """

    reduce_sum: ReduceSum
    name: str
    is_dummy: bool = False


def global_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    momentum: float,
    eps: float,
    reduction: Reduction,
) -> Tensor:
    """F.batch_norm in training, with statistics over the rows of all ranks.

    Args:
        input: this rank's rows, shape (rows, channels, ...), at least 2-d.
        running_mean, running_var: shape (channels,), equal on all ranks; updated in
            place (with the unbiased variance), to equal values.
        weight, bias: shape (channels,). Their gradients are this rank's terms, P(sum).
        momentum: the share of this batch in the running statistics.
        eps: added to the variance.
        reduction: how to sum over the ranks.

    Returns:
        Normalised rows, with the input's shape, dtype and memory format.

    Raises:
        ValueError: eps <= 0, or one value per channel in the whole batch.
    """
    if eps <= 0.0:
        raise ValueError(f"batch_norm needs eps > 0 in training, got {eps}")
    with torch.no_grad():
        count, mean, var = _global_statistics(input, running_mean, reduction)
        if count <= 1:
            raise ValueError(
                "batch_norm needs more than 1 value per channel over all ranks' rows, "
                f"got {int(count)} (shape {tuple(input.shape)} here)"
            )
        unbiased = var * (count / (count - 1))
        for running, value in ((running_mean, mean), (running_var, unbiased)):
            if running is not None:
                running.lerp_(value.to(running.dtype), momentum)
        accurate = torch.promote_types(input.dtype, torch.float32)
        statistics = _Statistics(count, mean.to(accurate), var.to(accurate), eps)
    output: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
        input, weight, bias, statistics, reduction
    )
    return output


@dataclass(frozen=True)
class _Statistics:
    """Of the whole batch, per channel: values counted, mean, biased variance."""

    count: float
    mean: Tensor
    var: Tensor
    eps: float


def _global_statistics(
    input: Tensor, running_mean: Tensor | None, reduction: Reduction
) -> tuple[float, Tensor, Tensor]:
    """Values per channel, mean and biased variance (float64) over all ranks."""
    channels = input.shape[1]
    count = 0 if reduction.is_dummy else input.numel() // channels
    if running_mean is None:
        shift = input.new_zeros(channels, dtype=torch.float64)
    else:
        shift = running_mean.double().nan_to_num(0.0, 0.0, 0.0)
    terms = input.new_zeros(1 + 2 * channels, dtype=torch.float64)
    if count:
        # torch's own kernel, four times as fast here as torch.var_mean. Its statistics
        # have the dtype of the weight.
        accurate = torch.promote_types(input.dtype, torch.float32)
        ones = input.new_ones(channels, dtype=accurate)
        _, mean, invstd = torch.native_batch_norm(
            input, ones, torch.zeros_like(ones), None, None, True, 0.0, _TINY
        )
        var = invstd.double() ** -2 - _TINY
        offset = mean.double() - shift
        terms[0] = count
        terms[1 : 1 + channels] = offset * count
        terms[1 + channels :] = (var.double() + offset**2) * count
    total = reduction.reduce_sum(terms, f"{reduction.name}.forward")
    all_count = float(total[0])
    first, second = (total[1:] / max(all_count, 1.0)).chunk(2)
    return all_count, shift + first, (second - first**2).clamp_min_(0.0)


class _Normalise(torch.autograd.Function):
    """(x - mean) invstd w + b, where mean and invstd depend on every rank's x."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: _Statistics,
        reduction: Reduction,
    ) -> Tensor:
        """The normalised rows."""
        ctx.save_for_backward(input, weight)
        ctx.statistics, ctx.reduction = statistics, reduction
        ctx.bias_dtype = None if bias is None else bias.dtype
        mean, var, eps = statistics.mean, statistics.var, statistics.eps
        weight, bias = _like(weight, mean), _like(bias, mean)
        output, _, _ = torch.native_batch_norm(
            input, weight, bias, mean, var, False, 0.0, eps
        )
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The cotangents; only the input's needs the other ranks."""
        input, weight = ctx.saved_tensors
        statistics: _Statistics = ctx.statistics
        mean, var, eps = statistics.mean, statistics.var, statistics.eps
        # As if the statistics were constants: dy w invstd, sum dy xhat, sum dy.
        grad_input, sum_grad_xhat, sum_grad = torch.ops.aten.native_batch_norm_backward(
            grad,
            input,
            _like(weight, mean),
            mean,
            var,
            None,
            None,
            False,
            eps,
            [ctx.needs_input_grad[0], True, True],
        )
        if ctx.needs_input_grad[0]:
            terms = torch.cat([sum_grad, sum_grad_xhat]).double()
            if ctx.reduction.is_dummy:
                terms.zero_()
            total = ctx.reduction.reduce_sum(terms, f"{ctx.reduction.name}.backward")
            if not ctx.reduction.is_dummy:
                _subtract_shared_(grad_input, input, weight, statistics, total)
        grad_weight = None if weight is None else sum_grad_xhat.to(weight.dtype)
        grad_bias = None if ctx.bias_dtype is None else sum_grad.to(ctx.bias_dtype)
        return grad_input, grad_weight, grad_bias, None, None


def _subtract_shared_(
    grad_input: Tensor,
    input: Tensor,
    weight: Tensor | None,
    statistics: _Statistics,
    total: Tensor,
) -> None:
    """Take away what reaches each row through the mean and the variance."""
    mean, var, eps = statistics.mean, statistics.var, statistics.eps
    scale = torch.rsqrt(var.double() + eps)
    if weight is not None:
        scale *= weight.double()
    share = (total / -statistics.count * scale.repeat(2)).to(mean.dtype)
    all_grad, all_grad_xhat = share.chunk(2)
    # The normalising kernel once more: xhat all_grad_xhat + all_grad, in one pass.
    shared, _, _ = torch.native_batch_norm(
        input, all_grad_xhat, all_grad, mean, var, False, 0.0, eps
    )
    grad_input.add_(shared)


def global_instance_statistics(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    momentum: float,
    reduction: Reduction,
) -> None:
    """Update instance normalisation's running statistics over the rows of all ranks.

    Instances are normalised each by itself; only these averages meet other rows.

    Args: see `global_batch_norm`.
    """
    with torch.no_grad():
        channels = input.shape[1]
        terms = input.new_zeros(1 + 2 * channels, dtype=torch.float64)
        if not reduction.is_dummy and input.shape[0]:
            places = tuple(range(2, input.dim()))
            var, mean = torch.var_mean(input.double(), places, correction=1)
            terms[0] = input.shape[0]
            terms[1:] = torch.cat([mean.sum(0), var.sum(0)])
        total = reduction.reduce_sum(terms, f"{reduction.name}.forward")
        mean, var = (total[1:] / total[0].clamp_min(1.0)).chunk(2)
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_(var.to(running_var.dtype), momentum)


def _like(channels: Tensor | None, other: Tensor) -> Tensor | None:
    return None if channels is None else channels.to(other.dtype)
