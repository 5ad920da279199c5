"""Sample calls: embedding."""

import torch

from testing.rule_samples.forms import T, given, index, sample

aten = torch.ops.aten
TABLE = T(7, 4)
ROWS = index(7, 5, 3)
MANY = given((0, 6, 3, 2, 3, 1, 5), 7)
BAGS = given((0, 2, 3), 3)
NUMBERS = given((0, 0, 1, 2, 2, 2, 2), 7)
SIZES = given((2, 1, 4), 3)

SAMPLES = (
    sample(aten.embedding.default, TABLE, ROWS),
    sample(aten.embedding.default, TABLE, ROWS, 2),
    sample(aten.embedding.default, TABLE, index(7)),
    sample(aten.embedding_dense_backward.default, T(5, 3, 4), ROWS, 7, -1, False),
    sample(aten.embedding_dense_backward.default, T(5, 3, 4), ROWS, 7, 2, False),
    sample(aten.embedding_dense_backward.default, T(5, 3, 4), ROWS, 7, -1, True),
    sample(aten._embedding_bag.default, TABLE, MANY, BAGS),
    sample(aten._embedding_bag_forward_only.default, TABLE, MANY, BAGS),
    sample(aten._embedding_bag.default, TABLE, MANY, BAGS, False, 1),
    sample(aten._embedding_bag.default, TABLE, MANY, BAGS, False, 2),
    sample(
        aten._embedding_bag_dense_backward.default,
        *(T(3, 4), MANY, NUMBERS, SIZES, SIZES, 7, False, 0, None),
    ),
)
