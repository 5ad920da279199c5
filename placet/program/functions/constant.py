"""A small tensor whose values stand in the program."""

from typing import Any

import torch
from torch import Tensor


def constant(
    values: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """A tensor of the given values, in row-major order."""
    return torch.tensor(values, dtype=dtype).reshape(shape)
