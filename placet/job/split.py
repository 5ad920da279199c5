"""This rank's rows of a global batch, where the model computes."""

from typing import Any

import torch
from torch import Tensor

from placet.placement.layout import chunk
from placet.run.global_batch import Rows
from placet.torch_private.pytree import leaves, map_leaves


def part_of(batch: Any, rank: int, num_ranks: int, micro: int) -> tuple[Any, Rows]:
    """Cut a batch along dim 0 by torch.chunk's rule.

    Args:
        batch: tensors of equal first dim in any nesting; other leaves are kept.
        micro: which micro-batch of the step it is; its rows come after the others'.

    Raises:
        ValueError: no tensor, or tensors whose first dims differ.
    """
    tensors = [t for t in leaves(batch) if isinstance(t, Tensor) and t.dim()]
    sizes = sorted({len(t) for t in tensors})
    if len(sizes) != 1:
        raise ValueError(
            f"cannot split a batch by rows: its tensors have first dims {sizes}; it "
            "needs at least one tensor, and one common number of rows"
        )
    num_rows = sizes[0]
    start, stop = chunk(0, num_rows, num_ranks, rank)
    taken = slice(start, stop) if start < stop else slice(0, 1)
    local = map_leaves(
        lambda t: t[taken] if isinstance(t, Tensor) and t.dim() else t, batch
    )
    first = micro * num_rows + start
    is_dummy = start == stop
    rows = Rows(
        first,
        max(stop - start, 1),
        (micro + 1) * num_rows,
        weight=0.0 if is_dummy else 1.0,
    )
    return local, rows


def moved(batch: Any, device: torch.device) -> Any:
    """A batch's tensors on the device the model computes on."""
    if device.type == "cpu":
        return batch
    return map_leaves(
        lambda x: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x, batch
    )
