"""Sample calls: reading and writing by indices."""

import torch

from testing.rule_samples.forms import T, given, index, mask, sample

aten = torch.ops.aten
X = T(5, 6, 4)
ONCE = given((3, 0, 2), 3)

SAMPLES = (
    sample(aten.index_select.default, X, 1, index(6, 7)),
    sample(aten.index_select.default, X, -1, index(4, 3)),
    sample(aten.gather.default, X, 1, index(6, 5, 3, 4)),
    sample(aten.gather.default, X, 1, index(6, 4, 7, 4)),
    sample(aten.gather.default, T(6), 0, index(6, 4)),
    sample(
        aten.scatter.src,
        T(5, 6),
        1,
        given((0, 3, 2, 5, 1, 4, 3, 2, 0, 5), 5, 2),
        T(5, 2),
    ),
    sample(aten.scatter.src, T(5, 6), 1, given((0, 3, 2, 5), 4, 1), T(4, 2)),
    sample(aten.scatter.value, X, 1, index(6, 5, 3, 4), 0),
    sample(aten.scatter.value, X, 1, index(6, 5, 3, 4), 2.5),
    sample(aten.scatter_reduce.two, X, 1, index(6, 5, 3, 4), T(5, 3, 4), "amax"),
    sample(aten.scatter_add.default, X, 1, index(6, 5, 7, 4), T(5, 7, 4)),
    sample(aten.scatter_add.default, X, 1, index(6, 5, 3, 4), T(5, 4, 4)),
    sample(aten.scatter_add.default, X, 0, index(5, 5, 3, 4), T(5, 3, 4)),
    sample(aten.scatter_add.default, T(6), 0, index(6, 7), T(7)),
    sample(aten.index_add.default, X, 1, index(6, 7), T(5, 7, 4)),
    sample(aten.index_add.default, X, 0, index(5, 3), T(3, 6, 4), alpha=0.5),
    sample(aten.index_copy.default, X, 1, ONCE, T(5, 3, 4)),
    sample(aten.index_fill.int_Scalar, X, 1, ONCE, 0),
    sample(aten.index_fill.int_Scalar, X, 1, ONCE, 1.5),
    sample(aten.index.Tensor, X, (index(5, 7),)),
    sample(aten.index.Tensor, X, (None, index(6, 3, 2))),
    sample(aten.index.Tensor, X, (index(5, 7), index(6, 7))),
    sample(aten.index.Tensor, X, (index(5, 3, 1), None, index(4, 7))),
    sample(aten.index.Tensor, X, (index(5, 3, 1), index(6, 7), None)),
    sample(aten.index.Tensor, X, (None, None, index(4))),
    sample(aten._unsafe_index.Tensor, X, (None, index(6, 3), index(4, 3))),
    sample(aten.index_put.default, X, (index(5, 7),), T(7, 6, 4), True),
    sample(aten.index_put.default, X, (None, index(6, 7)), T(7, 4), True),
    sample(aten.index_put.default, X, (None, index(6, 7)), T(5, 1, 4), True),
    sample(aten.index_put.default, X, (index(5, 3, 1), None, index(4, 7)), T(), True),
    sample(
        aten.index_put.default,
        X,
        (index(5, 3, 1), None, index(4, 7)),
        T(3, 7, 6),
        True,
    ),
    sample(aten.index_put.default, X, (ONCE,), T(3, 6, 4)),
    sample(aten.index_put.default, X, (mask(5, 6),), T()),
    sample(aten.index_put.default, X, (mask(5, 6),), T(1)),
    sample(aten.index_put.default, X, (mask(5, 6, 4),), T(), False),
    sample(aten._unsafe_index_put.default, X, (index(5, 7),), T(7, 6, 4), True),
    sample(aten.one_hot.default, index(4, 5, 3), 4),
)
