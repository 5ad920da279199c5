"""Sample calls: products."""

import torch

from placet.program.functions.linear import contract, linear
from testing.rule_samples.forms import T, given, sample

aten = torch.ops.aten

ENDS = given((2, 5, 7), 3, dtype=torch.int32)

SAMPLES = (
    sample(linear, T(5, 3, 4), T(4, 6)),
    sample(linear, T(5, 3, 4), T(4, 6), T(6)),
    sample(linear, T(7, 4), T(4, 5), T(5)),
    sample(linear, T(7, 4), T(4, 5), None),
    sample(contract, T(5, 3, 4), T(5, 3, 6)),
    sample(contract, T(7, 4), T(7, 3)),
    sample(aten.mm.default, T(7, 4), T(4, 6)),
    sample(aten.mm.default, T(1, 5), T(5, 3)),
    sample(aten.bmm.default, T(4, 7, 5), T(4, 5, 3)),
    sample(aten.mv.default, T(7, 5), T(5)),
    sample(aten.dot.default, T(7), T(7)),
    sample(aten.vdot.default, T(7), T(7)),
    sample(aten.addmm.default, T(6), T(7, 4), T(4, 6)),
    sample(aten.addmm.default, T(7, 6), T(7, 4), T(4, 6), beta=0.5, alpha=2.0),
    sample(aten.addmm.default, T(1, 6), T(7, 4), T(4, 6)),
    sample(aten.addmm.default, T(7, 1), T(7, 4), T(4, 6)),
    sample(aten.addmv.default, T(7), T(7, 4), T(4)),
    sample(aten.addbmm.default, T(4, 6), T(3, 4, 5), T(3, 5, 6)),
    sample(aten.baddbmm.default, T(3, 4, 6), T(3, 4, 5), T(3, 5, 6), beta=0),
    sample(aten.baddbmm.default, T(6), T(3, 4, 5), T(3, 5, 6)),
    sample(
        aten._grouped_mm.default,
        T(7, 48, dtype=torch.bfloat16, kind="index", high=3),
        T(3, 48, 32, dtype=torch.bfloat16, kind="index", high=3),
        ENDS,
    ),
    sample(
        aten._grouped_mm.default,
        T(32, 16, dtype=torch.bfloat16, kind="index", high=3),
        T(16, 48, dtype=torch.bfloat16, kind="index", high=3),
        given((4, 9, 16), 3, dtype=torch.int32),
    ),
)
