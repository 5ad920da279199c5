"""Sample calls: convolution, forward and backward."""

from collections.abc import Iterator

import torch

from testing.rule_samples.forms import Sample, T, sample

aten = torch.ops.aten
NO, TWO = (0, 0), (1, 1)
ALL = (True, True, True)


def _both(
    x: T,
    weight: T,
    y: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    *,
    transposed: bool = False,
) -> Iterator[Sample]:
    """A convolution whose output is y, with bias and without, and its backward."""
    rest = (stride, padding, dilation, transposed, (0,) * len(stride), groups)
    for bias in (T(y[1]), None):
        yield sample(aten.convolution.default, x, weight, bias, *rest)
    for mask in (ALL, (False, True, False)):
        sizes = (y[1],) if mask[2] else None
        args = (T(*y), x, weight, sizes, *rest, mask)
        yield sample(aten.convolution_backward.default, *args)


SAMPLES = (
    # 3 x 3, all kept; and with a wide halo, on sizes that do not divide
    *_both(T(3, 4, 6, 5), T(6, 4, 3, 3), (3, 6, 6, 5), TWO, TWO, TWO),
    *_both(T(2, 3, 7, 9), T(5, 3, 5, 1), (2, 5, 7, 9), TWO, (4, 0), (2, 1)),
    # stride: a first layer of ResNet, one with a kernel of 1, patches
    *_both(T(2, 3, 12, 8), T(4, 3, 7, 7), (2, 4, 6, 4), (2, 2), (3, 3), TWO),
    *_both(T(2, 3, 8, 12), T(4, 3, 1, 1), (2, 4, 4, 6), (2, 2), NO, TWO),
    *_both(T(2, 3, 10, 8), T(4, 3, 2, 2), (2, 4, 5, 4), (2, 2), NO, TWO),
    *_both(T(2, 3, 12, 9), T(4, 3, 3, 3), (2, 4, 6, 9), (2, 1), TWO, TWO),
    # sizes that allow no split of the image
    *_both(T(2, 3, 7, 9), T(4, 3, 3, 3), (2, 4, 5, 7), TWO, NO, TWO),
    # groups; one per channel
    *_both(T(2, 8, 4, 4), T(12, 2, 3, 3), (2, 12, 4, 4), TWO, TWO, TWO, 4),
    *_both(T(2, 5, 6, 4), T(5, 1, 3, 3), (2, 5, 6, 4), TWO, TWO, TWO, 5),
    # one and three dims
    *_both(T(3, 4, 9), T(6, 4, 3), (3, 6, 9), (1,), (1,), (1,)),
    *_both(
        *(T(2, 3, 4, 6, 4), T(4, 3, 3, 3, 3), (2, 4, 4, 6, 4)),
        *((1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ),
    # transposed, also with groups
    *_both(
        *(T(3, 4, 4, 3), T(4, 5, 2, 2), (3, 5, 8, 6), (2, 2), NO, TWO),
        transposed=True,
    ),
    *_both(
        *(T(2, 6, 4, 3), T(6, 2, 2, 2), (2, 6, 8, 6), (2, 2), NO, TWO, 3),
        transposed=True,
    ),
)
