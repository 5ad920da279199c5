"""Sample calls: losses."""

import torch

from placet.program.functions.loss import (
    cross_entropy_gradient,
    exp_sum,
    target_logit,
)
from testing.rule_samples.forms import T, given, index, sample

aten = torch.ops.aten
X = T(5, 4)
UNIT = T(5, 4, kind="given", values=tuple(i / 21 for i in range(1, 21)))
ONE = T(kind="positive")
NONE, MEAN, SUM = 0, 1, 2

LOGITS = T(3, 4, 7)
TARGET = given((0, 3, -100, 6, 2, 5, 1, -100, 4, 4, 3, 6), 3, 4)
ROW = T(3, 4, kind="positive")
CLASSES = given((0, 3, -100, 6, 2), 5)
SCORES = T(5, 7)
PLANES = T(4, 5, 3, 2)
PLANE = index(5, 4, 3, 2)

SAMPLES = (
    *(sample(aten.mse_loss.default, X, X, how) for how in (NONE, MEAN, SUM)),
    sample(aten.mse_loss.default, X, X),
    *(sample(aten.mse_loss_backward.default, ONE, X, X, how) for how in (MEAN, SUM)),
    sample(aten.mse_loss_backward.default, X, X, X, NONE),
    sample(aten.smooth_l1_loss.default, X, X, MEAN, 0.5),
    sample(aten.smooth_l1_loss_backward.default, ONE, X, X, MEAN, 0.5),
    sample(aten.huber_loss.default, X, X, MEAN, 0.5),
    sample(aten.huber_loss_backward.default, ONE, X, X, MEAN, 0.5),
    sample(aten.soft_margin_loss.default, X, X),
    sample(aten.soft_margin_loss_backward.default, ONE, X, X, MEAN),
    sample(aten.binary_cross_entropy.default, UNIT, UNIT),
    sample(aten.binary_cross_entropy.default, UNIT, UNIT, T(4), SUM),
    sample(aten.binary_cross_entropy_backward.default, ONE, UNIT, UNIT, T(4), MEAN),
    sample(aten.binary_cross_entropy_with_logits.default, X, UNIT),
    sample(aten.binary_cross_entropy_with_logits.default, X, UNIT, None, T(4), NONE),
    *(
        sample(aten.nll_loss_forward.default, SCORES, CLASSES, weight, how, -100)
        for how in (NONE, MEAN, SUM)
        for weight in (None, T(7, kind="positive"))
    ),
    sample(aten.nll_loss_forward.default, T(7), index(7), None, SUM, -100),
    *(
        sample(
            aten.nll_loss_backward.default,
            *(ONE, SCORES, CLASSES, T(7), how, -100, ONE),
        )
        for how in (MEAN, SUM)
    ),
    sample(
        aten.nll_loss_backward.default,
        *(T(5), SCORES, CLASSES, None, NONE, -100, ONE),
    ),
    sample(aten.nll_loss2d_forward.default, PLANES, PLANE, None, SUM, -100),
    sample(aten.nll_loss2d_forward.default, PLANES, PLANE, None, NONE, -100),
    sample(aten.nll_loss2d_backward.default, ONE, PLANES, PLANE, None, MEAN, -100, ONE),
    sample(exp_sum, LOGITS, ROW),
    sample(target_logit, LOGITS, TARGET, -100),
    sample(cross_entropy_gradient, LOGITS, TARGET, ROW, ROW, T(), -100),
)
