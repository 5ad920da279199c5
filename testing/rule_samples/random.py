"""Sample calls: random operators, of which only shapes are compared."""

from typing import Any

import torch

from testing.rule_samples.forms import Sample, T

aten = torch.ops.aten
X = T(5, 4, kind="positive")
P = T(5, 4, kind="given", values=(0.5,) * 20)


def _drawn(target: Any, *args: Any, **kwargs: Any) -> Sample:
    return Sample(target, args, tuple(kwargs.items()), has_values=False)


SAMPLES = (
    _drawn(aten.native_dropout.default, X, 0.5, True),
    _drawn(aten.bernoulli.default, P),
    _drawn(aten.bernoulli.p, X, 0.3),
    _drawn(aten.bernoulli.Tensor, X, P),
    _drawn(aten.rand_like.default, X),
    _drawn(aten.randn_like.default, X),
    _drawn(aten.randint_like.default, X, 9),
    _drawn(aten.randint_like.low_dtype, X, 2, 9),
    _drawn(aten.uniform.default, X),
    _drawn(aten.normal_functional.default, X),
    _drawn(aten.normal.Tensor_float, X),
    _drawn(aten.normal.float_Tensor, 0.0, P),
    _drawn(aten.normal.Tensor_Tensor, T(4), P),
    _drawn(aten.exponential.default, X),
    _drawn(aten.rand.default, (5, 4), dtype=torch.float64),
    _drawn(aten.randn.default, (5, 4)),
    _drawn(aten.randint.default, 9, (5, 4)),
    _drawn(aten.randint.low, 2, 9, (5, 4)),
    _drawn(aten.normal.float_float, 0.0, 1.0, (5, 4)),
    _drawn(aten.randperm.default, 5),
    _drawn(aten.multinomial.default, P, 2),
)
