"""What a loss or a metric gave: a mean, and the number of targets it is the mean of."""

import math
from typing import Any

from torch import Tensor


def mean_and_count(value: Any, num_rows: int, what: str) -> tuple[Any, float]:
    """A mean as it was given, and its count.

    Args:
        value: the mean, or (mean, count).
        num_rows: the count where none is given.
        what: gave the value; for messages.

    Raises:
        TypeError: something else than numbers or tensors.
        ValueError: several numbers, or a count that counts nothing.
    """
    mean, count = value, num_rows
    if isinstance(value, tuple):
        if len(value) != 2:
            raise TypeError(
                f"{what} gave a tuple of {len(value)}; it needs a mean, or a pair "
                "(mean, number of targets)"
            )
        mean, count = value
    for part, name in ((mean, "mean"), (count, "count")):
        if not isinstance(part, Tensor | int | float):
            raise TypeError(
                f"{what} gave a {type(part).__name__} for its {name}: return the mean "
                "as a number or tensor, or a pair (mean, number of targets)"
            )
        if isinstance(part, Tensor) and part.numel() != 1:
            raise ValueError(
                f"{what} gave a {name} of shape {tuple(part.shape)}, which is not one "
                f"number; {'reduce it with .mean()' if name == 'mean' else 'sum it'}"
            )
    number = float(count)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{what} counted {number:g} targets; it needs 0 or more")
    return mean, number


def loss_and_count(value: Any, num_rows: int) -> tuple[Tensor, float]:
    """The loss to differentiate, and its count; see `mean_and_count`."""
    loss, count = mean_and_count(value, num_rows, "the loss")
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"the loss gave the number {loss!r}, which autograd cannot differentiate: "
            "return the tensor, without .item() or float()"
        )
    return loss, count
