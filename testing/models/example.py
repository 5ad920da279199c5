"""A model with a batch and a loss: what planning, capture and benches start from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from placet.torch_private.pytree import flatten, map_leaves, unflatten


@dataclass(frozen=True)
class Example:
    """One model, how to build it, and one step's batch.

    Both functions may be called under `torch.device("meta")`, so that a model larger
    than the machine can be described.

    Args:
        name: for people.
        model_fn: builds the model with random weights.
        batch_fn: builds a batch; drawn from torch's default generator.
        loss: of model and batch, a mean over the batch.
    """

    name: str
    model_fn: Callable[[], nn.Module]
    batch_fn: Callable[[], Any]
    loss: Callable[[nn.Module, Any], Tensor]


def in_float64(example: Example) -> tuple[nn.Module, Any]:
    """A model and a batch whose floating point numbers are float64."""

    def double(leaf: Any) -> Any:
        return leaf.double() if torch.is_floating_point(leaf) else leaf

    return example.model_fn().double(), map_leaves(double, example.batch_fn())


def of_rows(example: Example, num_rows: int) -> Example:
    """The same model with a batch of so many rows: the first dim of all its tensors."""

    def batch_fn() -> Any:
        drawn = [flatten(example.batch_fn()) for _ in range(num_rows)]
        columns = zip(*(tensors for tensors, _ in drawn), strict=True)
        return unflatten([torch.cat(x)[:num_rows] for x in columns], drawn[0][1])

    return replace(example, batch_fn=batch_fn)
