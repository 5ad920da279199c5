"""One kernel over many tensors: torch's foreach functions, under plain names."""

from collections.abc import Sequence

import torch
from torch import Tensor


def copy(dst: Sequence[Tensor], src: Sequence[Tensor]) -> None:
    """Copy each of `src` into its place in `dst`."""
    if dst:
        torch._foreach_copy_(list(dst), list(src))


def multiply(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply each tensor, in place."""
    torch._foreach_mul_(list(tensors), factor)


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The 2-norm of each tensor."""
    return list(torch._foreach_norm(list(tensors)))
