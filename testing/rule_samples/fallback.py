"""Sample calls of operators without rules of their own."""

import torch

from testing.rule_samples.forms import T, index, sample

aten = torch.ops.aten
X = T(5, 4, 6)
SQUARE = T(4, 3, 3)

SAMPLES = (
    # DTensor's rules
    sample(aten.linalg_inv_ex.default, SQUARE),
    sample(aten.linalg_cross.default, T(4, 6, 3), T(4, 6, 3)),
    sample(aten.nanmedian.dim, X, 1),
    sample(aten.mode.default, X, 1),
    sample(aten.diagonal_scatter.default, T(4, 5, 6), T(4, 5), 0, 1, 2),
    sample(aten.index_reduce.default, X, 1, index(4, 3), T(5, 3, 6), "amax"),
    sample(aten._fft_c2c.default, T(4, 6, dtype=torch.complex128), (1,), 0, True),
    sample(aten.grid_sampler_2d.default, T(4, 2, 5, 5), T(4, 3, 3, 2), 0, 0, False),
    # decompositions
    sample(aten.glu.default, X, 1),
    sample(aten.glu_backward.default, T(5, 2, 6), X, 1),
    sample(aten.reflection_pad2d.default, T(5, 4, 6, 6), (1, 1, 2, 2)),
    sample(aten.pixel_shuffle.default, T(4, 8, 3, 3), 2),
    sample(aten._weight_norm_interface.default, T(6, 4), T(6, 1)),
    sample(aten.renorm.default, X, 2, 0, 1.0),
    sample(aten.addr.default, T(5, 4), T(5), T(4)),
    sample(aten.norm.Scalar, X, 2),
    sample(aten.aminmax.default, X, dim=1),
    sample(aten.trace.default, T(4, 4)),
    sample(aten.im2col.default, T(4, 2, 5, 5), (3, 3), (1, 1), (0, 0), (1, 1)),
    sample(aten.upsample_nearest1d.default, T(4, 3, 5), (10,)),
    sample(aten.unfold.default, X, 2, 3, 1),
    sample(aten.diag_embed.default, T(5, 4)),
)
