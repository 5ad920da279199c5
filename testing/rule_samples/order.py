"""Sample calls: operators along one dim."""

import torch

from testing.rule_samples.forms import T, given, sample

aten = torch.ops.aten
X = T(5, 4, 6)
ROW = given((-1.0, -0.5, 0.1, 0.9), 4, dtype=torch.float64)
ROWS = given(tuple(range(20)), 5, 4, dtype=torch.float64)

SAMPLES = (
    sample(aten.sort.default, X),
    sample(aten.sort.default, X, 0, True),
    sample(aten.sort.stable, X, stable=True, dim=1),
    sample(aten.argsort.default, X, 1),
    sample(aten.argsort.stable, X, stable=True, dim=0),
    sample(aten.topk.default, X, 2),
    sample(aten.topk.default, X, 3, 1, False),
    sample(aten.cumsum.default, X, 1),
    sample(aten.cumprod.default, X, -1),
    sample(aten.logcumsumexp.default, X, 0),
    sample(aten.cummax.default, X, 1),
    sample(aten.cummin.default, X, 1),
    sample(aten.glu.default, X, 1),
    sample(aten.glu_backward.default, T(5, 2, 6), X, 1),
    sample(aten.bucketize.Tensor, T(5, 4), ROW),
    sample(aten.searchsorted.Tensor, ROW, T(5, 4)),
    sample(aten.searchsorted.Tensor, ROWS, T(5, 7), right=True),
)
