"""Sample calls: softmax."""

import torch

from testing.rule_samples.forms import T, sample

aten = torch.ops.aten
X = T(5, 4, 3)
F64 = torch.float64

SAMPLES = (
    sample(aten._softmax.default, X, 1, False),
    sample(aten._softmax.default, X, -1, False),
    sample(aten._log_softmax.default, X, 0, False),
    sample(aten._log_softmax.default, T(7), 0, False),
    sample(aten._safe_softmax.default, X, 2),
    sample(aten._softmax_backward_data.default, X, X, -1, F64),
    sample(aten._log_softmax_backward_data.default, X, X, 1, F64),
)
