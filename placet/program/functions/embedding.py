"""Embedding with a part of the table: rows from `offset` on.

    out[i]   = w[index[i] - offset], or 0 where this part lacks the row
    grad[r]  = sum over i with index[i] = r + offset of g[i]

Ranks that share the rows sum their outputs, and have each the gradient of its own.

Source: Megatron-LM (arXiv:1909.08053), sec. 3, the parallel embedding.
"""

import torch
from torch import Tensor


def embedding_part(weight: Tensor, index: Tensor, offset: int) -> Tensor:
    """Rows of weight (rows, width) at index (...): (..., width)."""
    row, here = _within(index, offset, weight.shape[0])
    found = torch.embedding(weight, row)
    return found.masked_fill_(~here.unsqueeze(-1), 0)


def embedding_part_gradient(
    grad: Tensor, index: Tensor, num_rows: int, padding_index: int, offset: int
) -> Tensor:
    """The gradient of a part of the table: (num_rows, width).

    Args:
        grad: (..., width).
        index: (...), rows of the whole table.
        num_rows: of the part.
        padding_index: the row of the whole table that gets no gradient, or -1.
        offset: the part's first row.
    """
    row, here = _within(index, offset, num_rows)
    here = here & (index != padding_index)
    masked = grad.masked_fill(~here.unsqueeze(-1), 0).flatten(0, -2)
    made = grad.new_zeros(num_rows, grad.shape[-1])
    return made.index_add_(0, row.flatten(), masked)


def _within(index: Tensor, offset: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Indices into a part of the table, and whether they lie in it."""
    row = index - offset
    here = (row >= 0) & (row < num_rows)
    return row.clamp(0, num_rows - 1), here
