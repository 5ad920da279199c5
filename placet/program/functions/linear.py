"""Matrix products over any number of leading dims.

    linear(x, w, bias)[..., n] = sum over k of x[..., k] w[k, n] + bias[n]
    contract(a, b)[i, j]       = sum over all leading dims of a[..., i] b[..., j]

With them a layer's output and its weight's gradient are single operators in which each
leading dim (batch, sequence) can be split; as aten traces them, they are products of
flattened views, where only the first can.
"""

import torch
from torch import Tensor


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., k) times w (k, n), plus bias (n,): (..., n)."""
    flat = x.reshape(-1, x.shape[-1])
    made = torch.mm(flat, w) if bias is None else torch.addmm(bias, flat, w)
    return made.view(*x.shape[:-1], w.shape[-1])


def contract(a: Tensor, b: Tensor) -> Tensor:
    """a (..., i) and b (..., j), their leading dims summed over: (i, j)."""
    return a.reshape(-1, a.shape[-1]).t().mm(b.reshape(-1, b.shape[-1]))
