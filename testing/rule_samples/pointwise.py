"""Sample calls: pointwise operators, with and without torch's tag."""

import torch

from testing.rule_samples.forms import T, sample

aten = torch.ops.aten
X, ROW, GRAD = T(5, 4), T(4), T(5, 4)
SAMPLES = (
    sample(aten.add.Tensor, X, ROW),
    sample(aten.add.Tensor, T(5, 1), T(3, 1, 4), alpha=2.0),
    sample(aten.add.Tensor, X, 1.5),
    sample(aten.mul.Tensor, X, ROW),
    sample(aten.mul.Tensor, X, 2.0),
)
