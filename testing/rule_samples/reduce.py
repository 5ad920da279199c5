"""Sample calls: reductions."""

import torch

from testing.rule_samples.forms import T, mask, sample

aten = torch.ops.aten
X = T(5, 4, 6)

SAMPLES = (
    sample(aten.sum.default, X),
    sample(aten.sum.default, mask(5, 4)),
    sample(aten.sum.default, X, dtype=torch.float32),
    sample(aten.sum.dim_IntList, X, (1,)),
    sample(aten.sum.dim_IntList, X, (0, -1), True),
    sample(aten.sum.dim_IntList, X, None),
    sample(aten.sum.dim_IntList, mask(5, 4), (0,)),
    sample(aten.nansum.default, X, (1,)),
    sample(aten.mean.default, X),
    sample(aten.mean.dim, X, (-1,), True),
    sample(aten.mean.dim, X, (0, 1)),
    sample(aten.mean.dim, X, (0, 1), dtype=torch.float32),
    sample(aten.amax.default, X, (-1,)),
    sample(aten.amax.default, X, (0, 1), True),
    sample(aten.amin.default, X, (1,)),
    sample(aten.amin.default, X),
    sample(aten.max.default, X),
    sample(aten.min.default, X),
    sample(aten.max.dim, X, 1),
    sample(aten.min.dim, X, -1, True),
    sample(aten.argmax.default, X, 1),
    sample(aten.argmax.default, X),
    sample(aten.argmin.default, X, 0, True),
    sample(aten.count_nonzero.default, T(5, 4, dtype=torch.int64)),
    sample(aten.count_nonzero.dim_IntList, mask(5, 4), (1,)),
    sample(aten.histc.default, T(7, 4), 4, -1, 1),
    sample(aten.histc.default, T(7, 4), 4),
    sample(aten.prod.default, X),
    sample(aten.any.default, mask(5, 4)),
    sample(aten.all.default, mask(5, 4)),
    sample(aten.std_mean.correction, X, (2,), correction=0),
    sample(aten.prod.dim_int, X, 1),
    sample(aten.any.dim, mask(5, 4), 1),
    sample(aten.any.dims, mask(5, 4, 3), (0, 1)),
    sample(aten.all.dim, mask(5, 4), 0),
    sample(aten.all.dims, mask(5, 4, 3), (1,), True),
    sample(aten.logsumexp.default, X, (2,)),
    sample(aten.var.correction, X, (1,), correction=0),
    sample(aten.var.correction, X, (1,), correction=1, keepdim=True),
    sample(aten.std.correction, X, (0, 1), correction=1),
    sample(aten.var_mean.correction, X, (2,), correction=0, keepdim=True),
    sample(aten.linalg_vector_norm.default, X, 2, (1,)),
    sample(aten.linalg_vector_norm.default, X, 2, None),
    sample(aten.median.dim, X, 1),
    sample(aten.kthvalue.default, X, 2, 1),
)
