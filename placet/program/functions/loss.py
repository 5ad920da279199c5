"""Cross-entropy over a vocabulary, in steps whose sums may be partial.

    row_max = max over v of x[..., v]                  aten.amax
    row_sum = sum over v of exp(x[..., v] - row_max)   -> exp_sum
    hit     = x[..., target]                           -> target_logit
    loss    = log(row_sum) + row_max - hit, where the target counts
    grad    = (exp(x - row_max) / row_sum - [v == target]) scale
                                                       -> cross_entropy_gradient

A rank with a part of the vocabulary passes `offset`, where its part begins; maxima and
sums of all ranks are then reduced, three numbers a row in place of the vocabulary.

Source: Megatron-LM (arXiv:1909.08053), sec. 3, the fused parallel loss.
"""

import torch
from torch import Tensor


def exp_sum(logits: Tensor, row_max: Tensor) -> Tensor:
    """Sum over the last dim of exp(logits - row_max): (..., V), (...) -> (...)."""
    return (logits - row_max.unsqueeze(-1)).exp_().sum(-1)


def target_logit(
    logits: Tensor, target: Tensor, ignore_index: int, offset: int = 0
) -> Tensor:
    """The target's logit of each row, 0 where this part of the vocabulary lacks it.

    Args:
        logits: (..., V), the vocabulary from `offset` on.
        target: (...), indices into the whole vocabulary.
        ignore_index: a target that does not count.
    """
    index, here = _within(target, ignore_index, offset, logits.shape[-1])
    found = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return torch.where(here, found, torch.zeros((), dtype=found.dtype))


def cross_entropy_gradient(
    logits: Tensor,
    target: Tensor,
    row_max: Tensor,
    row_sum: Tensor,
    scale: Tensor,
    ignore_index: int,
    offset: int = 0,
) -> Tensor:
    """The gradient of sum(loss rows) * scale: like logits; see `target_logit`."""
    grad = (logits - row_max.unsqueeze(-1)).exp_()
    counts = (target != ignore_index).to(grad.dtype) * scale
    grad.mul_((counts / row_sum).unsqueeze(-1))
    index, here = _within(target, ignore_index, offset, logits.shape[-1])
    taken = torch.where(here, -scale, torch.zeros_like(scale)).to(grad.dtype)
    return grad.scatter_add_(-1, index.unsqueeze(-1), taken.unsqueeze(-1))


def _within(
    target: Tensor, ignore_index: int, offset: int, size: int
) -> tuple[Tensor, Tensor]:
    """Targets as indices into a part of the vocabulary, and whether they lie in it."""
    index = target - offset
    here = (index >= 0) & (index < size) & (target != ignore_index)
    return index.clamp(0, size - 1), here
