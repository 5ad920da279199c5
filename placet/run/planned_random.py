"""Random operators of a plan: each rank draws its part of the global numbers.

A part is a box of the global tensor; its elements are keyed by their global row-major
index, run of consecutive indices by run. So replicas draw the same, parts draw parts of
the whole, and a plan draws what one device would. Operations take their keys from the
generator in program order, which is the same on all ranks.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from placet.placement.layout import Box, Shape
from placet.program.signature import Call, Operator
from placet.run.keyed_random import op_key
from placet.run.random_ops import KEYED

Fill = Callable[[Tensor, int, int], None]


def keyed_call(call: Call, operator: Operator) -> Call:
    """A call of a random operator that draws keyed numbers for its box.

    Raises:
        ValueError: an operator whose numbers cannot be keyed.
    """
    assert call.random_box is not None
    drawn = KEYED_PARTS.get(call.target)
    meta = operator.outputs[0]
    if drawn is None or meta is None:
        raise ValueError(
            f"{operator.text} draws random numbers that cannot be keyed; build it from "
            "torch.rand, randn, randint, bernoulli or dropout"
        )
    box, shape = call.random_box, meta.shape

    def keyed(*args: Any, **kwargs: Any) -> Any:
        return drawn(BoxDraw(box, shape, op_key()), *args, **kwargs)

    keyed.__name__ = f"keyed_{str(call.target).replace('.', '_')}"
    return replace(call, target=keyed)


def _randperm(draw: "BoxDraw", n: int, **kwargs: Any) -> Tensor:
    """A permutation, which every rank draws whole."""
    generator = torch.Generator().manual_seed(draw.key)
    dtype = kwargs.get("dtype", torch.int64)
    return torch.randperm(n, generator=generator, dtype=dtype)


KEYED_PARTS = {**KEYED, torch.ops.aten.randperm.default: _randperm}
"""Operator -> the same with keyed numbers."""


@dataclass(frozen=True)
class BoxDraw:
    """One random operation on this rank.

    Args:
        box: the global indices that it makes.
        shape: of the global tensor.
        key: of the operation.
    """

    box: Box
    shape: Shape
    key: int

    def fill(self, out: Tensor, fill: Fill) -> Tensor:
        """Fill a part by its elements' global indices."""
        flat = torch.empty(out.numel(), dtype=out.dtype, device=out.device)
        done = 0
        for start, length in runs(self.box, self.shape):
            fill(flat[done : done + length], self.key, start)
            done += length
        return out.copy_(flat.view(out.shape))

    def rows_first(self, values: Tensor) -> Tensor:
        """Values that go with the elements of a part, in the order of `fill`."""
        return values.reshape(-1)


def runs(box: Box, shape: Shape) -> Iterator[tuple[int, int]]:
    """The runs of consecutive row-major indices in a box: (first index, length)."""
    if any(start >= stop for start, stop in box):
        return
    inner = len(shape)
    while inner and box[inner - 1] == (0, shape[inner - 1]):
        inner -= 1
    # Dims from `inner` on are whole; the one before them is the last that is cut.
    length = math.prod(shape[inner:])
    if inner:
        start, stop = box[inner - 1]
        length *= stop - start
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    outer = [range(*interval) for interval in box[: max(inner - 1, 0)]]
    first = box[inner - 1][0] * strides[inner - 1] if inner else 0
    for index in product(*outer):
        yield first + sum(i * s for i, s in zip(index, strides, strict=False)), length
