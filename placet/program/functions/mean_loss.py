"""A rank's term of a loss that is a mean over all elements, and its gradient.

    loss        = sum of the part's losses / count               -> term_of_mean
    gradient    = the gradient of sum(losses), of grad / count   -> gradient_of_mean

`count` is of the whole tensor, so that the ranks' terms add up to the mean.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def term_of_mean(target: Callable[..., Tensor], count: int, *args: Any) -> Tensor:
    """target(*args), which sums, divided by the count."""
    return target(*args) / count


def gradient_of_mean(
    target: Callable[..., Tensor], count: int, grad: Tensor, *args: Any
) -> Tensor:
    """target(grad / count, *args), which is the gradient of a sum."""
    return target(grad / count, *args)
