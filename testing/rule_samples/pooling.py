"""Sample calls: pooling and resizing."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from testing.rule_samples.forms import Sample, T, sample

aten = torch.ops.aten
X = T(3, 4, 8, 12)


def _max_pool(x: T, y: tuple[int, ...], *pool: Any) -> Iterator[Sample]:
    """Forward and backward; the backward's indices are those of the forward."""
    yield sample(aten.max_pool2d_with_indices.default, x, *pool)
    index = T(*y, dtype=torch.int64)

    def prepare(tensors: list[Tensor]) -> list[Tensor]:
        grad, x, _ = tensors
        return [grad, x, aten.max_pool2d_with_indices.default(x, *pool)[1]]

    target = aten.max_pool2d_with_indices_backward.default
    yield Sample(target, (T(*y), x, *pool, index), prepare=prepare)


def _avg_pool(x: T, y: tuple[int, ...], *pool: Any) -> Iterator[Sample]:
    yield sample(aten.avg_pool2d.default, x, *pool)
    yield sample(aten.avg_pool2d_backward.default, T(*y), x, *pool)


def _with_indices_3d(tensors: list[Tensor]) -> list[Tensor]:
    grad, x, _ = tensors
    indices = aten.max_pool3d_with_indices.default(x, (2, 2, 2))[1]
    return [grad, x, indices]


def _with_adaptive_indices(tensors: list[Tensor]) -> list[Tensor]:
    grad, x, _ = tensors
    return [grad, x, aten.adaptive_max_pool2d.default(x, (4, 3))[1]]


SAMPLES = (
    *_max_pool(X, (3, 4, 4, 6), (2, 2), (2, 2), (0, 0), (1, 1), False),
    *_max_pool(X, (3, 4, 4, 6), (3, 3), (2, 2), (1, 1), (1, 1), False),
    *_max_pool(X, (3, 4, 8, 6), (5, 2), (1, 2), (2, 0), (1, 1), False),
    *_max_pool(X, (3, 4, 3, 5), (3, 3), (2, 2), (0, 0), (1, 1), False),
    *_max_pool(X, (3, 4, 4, 6), (3, 3), (2, 2), (0, 0), (1, 1), True),
    *_max_pool(T(5, 6, 10), (5, 3, 5), (2, 2), (2, 2), (0, 0), (1, 1), False),
    sample(aten.max_pool2d_with_indices.default, X, (2, 2)),
    *_avg_pool(X, (3, 4, 4, 6), (2, 2), (2, 2), (0, 0), False, True, None),
    *_avg_pool(X, (3, 4, 8, 12), (3, 3), (1, 1), (1, 1), False, True, None),
    *_avg_pool(X, (3, 4, 8, 12), (3, 3), (1, 1), (1, 1), False, False, None),
    *_avg_pool(X, (3, 4, 4, 6), (3, 3), (2, 2), (1, 1), False, True, 5),
    sample(aten.avg_pool2d.default, X, (2, 2)),
    sample(aten._adaptive_avg_pool2d.default, X, (4, 3)),
    sample(aten._adaptive_avg_pool2d.default, X, (5, 1)),
    sample(aten._adaptive_avg_pool2d.default, X, (8, 12)),
    sample(aten._adaptive_avg_pool2d_backward.default, T(3, 4, 4, 3), X),
    sample(aten._adaptive_avg_pool2d_backward.default, T(3, 4, 5, 1), X),
    sample(aten.adaptive_max_pool2d.default, X, (4, 3)),
    sample(aten.max_pool3d_with_indices.default, T(3, 4, 4, 4, 4), (2, 2, 2)),
    sample(aten.avg_pool3d.default, T(3, 4, 4, 4, 4), (2, 2, 2)),
    sample(aten.avg_pool1d.default, T(3, 4, 9), (3,)),
    sample(aten.upsample_nearest2d.vec, X, None, (2.0, 2.0)),
    sample(aten.upsample_bilinear2d.vec, X, (16, 20), False, None),
    sample(aten.upsample_nearest2d_backward.default, X, (8, 12), (3, 4, 4, 6)),
    sample(aten.upsample_bilinear2d_backward.default, X, (8, 12), (3, 4, 4, 6), False),
    sample(aten._adaptive_avg_pool3d.default, T(3, 4, 4, 4, 4), (2, 2, 1)),
    sample(
        aten._adaptive_avg_pool3d_backward.default,
        *(T(3, 4, 2, 2, 1), T(3, 4, 4, 4, 4)),
    ),
    sample(
        aten.avg_pool3d_backward.default,
        *(T(3, 4, 2, 2, 2), T(3, 4, 4, 4, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0)),
        *(False, True, None),
    ),
    Sample(
        aten.max_pool3d_with_indices_backward.default,
        (
            *(T(3, 4, 2, 2, 2), T(3, 4, 4, 4, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0)),
            *((1, 1, 1), False, T(3, 4, 2, 2, 2, dtype=torch.int64)),
        ),
        prepare=_with_indices_3d,
    ),
    Sample(
        aten.adaptive_max_pool2d_backward.default,
        (T(3, 4, 4, 3), X, T(3, 4, 4, 3, dtype=torch.int64)),
        prepare=_with_adaptive_indices,
    ),
    sample(aten.upsample_nearest2d.default, X, (16, 24)),
    sample(aten.upsample_bilinear2d.default, X, (16, 24), False),
    sample(aten.upsample_bicubic2d.default, X, (16, 24), False),
    sample(aten.upsample_bicubic2d_backward.default, X, (8, 12), (3, 4, 4, 6), False),
)
