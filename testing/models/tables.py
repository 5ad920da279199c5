"""A multi-layer perceptron, and a recommender in the style of DLRM (arXiv:1906.00091).

B batch, F features, D width
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them.

    Args:
        sizes: of the input, of each hidden layer, of the output.
    """
    layers: list[nn.Module] = []
    for src, dst in pairwise(sizes):
        layers += [nn.Linear(src, dst), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """Embedding tables and dense features, whose pairs of dot products are judged.

    Args:
        tables: rows of each embedding table.
        width: of an embedding.
        num_dense: dense features.
        hidden: width of the perceptrons below and above.
    """

    def __init__(
        self, tables: Sequence[int], *, width: int, num_dense: int, hidden: int
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        self.below = perceptron((num_dense, hidden, width))
        num_features = len(tables) + 1
        num_pairs = num_features * num_features
        self.above = perceptron((width + num_pairs, hidden, hidden, 1))

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """[B, num_dense] and rows [B, number of tables] -> [B] logits."""
        dense, rows = inputs
        below = self.below(dense)
        found = [table(rows[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([below, *found], 1)
        pairs = torch.bmm(features, features.transpose(1, 2))
        above = self.above(torch.cat([below, pairs.flatten(1)], 1))
        return cast(Tensor, above.squeeze(1))
