"""Sample calls: tensors from nothing."""

import torch

from placet.program.functions.constant import constant
from testing.rule_samples.forms import Sample, T, mask, sample

aten = torch.ops.aten
X = T(5, 4)
F64 = torch.float64

SAMPLES = (
    sample(constant, (1.0, 2.0), (2,), F64),
    sample(aten.scalar_tensor.default, 2.0, dtype=F64),
    sample(aten.eye.default, 4),
    sample(aten.eye.m, 4, 3),
    sample(aten.linspace.default, 0, 1, 5),
    sample(aten.tril_indices.default, 4, 4),
    sample(aten.triu_indices.default, 4, 4),
    sample(aten.full.default, (5, 4), 2.0, dtype=F64),
    sample(aten.full.default, (5, 4), 0.0, dtype=F64),
    sample(aten.full.default, (5, 4), False, dtype=torch.bool),
    sample(aten.full.default, (), 3),
    sample(aten.zeros.default, (5, 4), dtype=F64),
    sample(aten.ones.default, (5, 4), dtype=torch.int64),
    Sample(aten.empty.memory_format, ((5, 4),), has_values=False),
    sample(aten.full_like.default, X, 1.5, memory_format=torch.preserve_format),
    sample(aten.full_like.default, mask(5, 4), True),
    sample(aten.zeros_like.default, X, dtype=torch.float32),
    sample(aten.zeros_like.default, T()),
    sample(aten.ones_like.default, X, pin_memory=False),
    Sample(aten.empty_like.default, (X,), has_values=False),
    sample(aten.new_full.default, X, (3, 4), 2.0),
    sample(aten.new_zeros.default, X, (7, 3)),
    sample(aten.new_zeros.default, X, (5, 4)),
    sample(aten.new_ones.default, X, (3,), dtype=torch.bool),
    Sample(aten.new_empty.default, (X, (3, 6)), has_values=False),
    Sample(aten.new_empty_strided.default, (X, (3, 6), (1, 3)), has_values=False),
    sample(aten.arange.default, 7),
    sample(aten.arange.default, 7, dtype=F64),
    sample(aten.arange.start, 2, 9),
    sample(aten.arange.start_step, 2, 15, 3),
    sample(aten.arange.start_step, 9, 0, -2),
    sample(aten.arange.start_step, 0, 1.0, 0.25),
    sample(
        torch.ops.prims.iota.default,
        7,
        start=1,
        step=2,
        dtype=torch.int64,
        device=torch.device("cpu"),
        requires_grad=False,
    ),
)
