"""Sample calls: normalisation."""

import torch

from placet.program.functions.batch_norm import (
    batch_moments,
    batch_norm_apply,
    batch_norm_grad_sums,
    batch_norm_gradient,
    batch_sums,
    moved_average,
    row_of,
)
from testing.rule_samples.forms import T, sample

aten = torch.ops.aten
X = T(5, 4, 6)
STATS = T(5, 4, 1, kind="positive")
ALL = (True, True, True)

IMAGE = T(5, 6, 4, 3)
GROUPS = T(5, 3, kind="positive")
C = T(6)
VAR = T(6, kind="positive")
NONE = T(0)
PAIR = T(2, 6, kind="positive")

SAMPLES = (
    sample(aten.native_layer_norm.default, X, (6,), T(6), T(6), 1e-5),
    sample(aten.native_layer_norm.default, X, (4, 6), None, None, 1e-5),
    sample(
        aten.native_layer_norm_backward.default,
        *(X, X, (6,), STATS, STATS, T(6), T(6), ALL),
    ),
    sample(
        aten.native_layer_norm_backward.default,
        *(X, X, (6,), STATS, STATS, T(6), None, (True, True, False)),
    ),
    sample(aten._fused_rms_norm.default, X, (6,), T(6), 1e-5),
    sample(aten.native_group_norm.default, IMAGE, C, C, 5, 6, 12, 3, 1e-5),
    sample(aten.native_group_norm.default, IMAGE, None, None, 5, 6, 12, 2, 1e-5),
    sample(
        aten.native_group_norm_backward.default,
        *(IMAGE, IMAGE, GROUPS, GROUPS, C, 5, 6, 12, 3, ALL),
    ),
    sample(aten.native_batch_norm.default, IMAGE, C, C, C, VAR, False, 0.1, 1e-5),
    sample(aten._native_batch_norm_legit.no_stats, IMAGE, C, C, True, 0.1, 1e-5),
    sample(
        aten._native_batch_norm_legit_functional.default,
        *(IMAGE, C, C, C, VAR, True, 0.1, 1e-5),
    ),
    sample(
        aten._native_batch_norm_legit_functional.default,
        *(IMAGE, C, C, C, VAR, False, 0.1, 1e-5),
    ),
    sample(
        aten._native_batch_norm_legit_no_training.default,
        *(IMAGE, C, C, C, VAR, 0.1, 1e-5),
    ),
    sample(
        aten.native_batch_norm_backward.default,
        *(IMAGE, IMAGE, C, None, None, C, VAR, True, 1e-5, ALL),
    ),
    sample(
        aten.native_batch_norm_backward.default,
        *(IMAGE, IMAGE, C, C, VAR, NONE, NONE, False, 1e-5, ALL),
    ),
    sample(batch_sums, IMAGE),
    sample(batch_moments, PAIR, 60.0),
    sample(batch_norm_apply, IMAGE, PAIR, C, C, 1e-5),
    sample(batch_norm_apply, T(5, 6), PAIR, None, None, 1e-5),
    sample(batch_norm_grad_sums, IMAGE, IMAGE, PAIR, 1e-5),
    sample(batch_norm_gradient, IMAGE, IMAGE, PAIR, T(2, 6), C, 60.0, 1e-5),
    sample(batch_norm_gradient, IMAGE, IMAGE, PAIR, T(2, 6), None, 60.0, 1e-5),
    sample(moved_average, C, PAIR, 1, 1.25, 0.1),
    sample(row_of, PAIR, 1, torch.float64),
)
