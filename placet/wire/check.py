"""What every wire asks of a submission, so that all refuse the same ones.

A job that runs on the twin must run on gloo: the twin could reduce any dtype that torch
adds, but gloo and NCCL cannot.
"""

import torch
from torch import Tensor

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
    describe,
)

REDUCIBLE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    }
)
"""dtypes that every wire can sum and compare."""


def payload_size(move: Move, rank: int) -> int:
    """How many elements `rank` gives to a move."""
    me = move.group.index(rank)
    match move:
        case AllReduce() | BroadcastFrom():
            return move.num_elements
        case AllGather():
            return move.counts[me]
        case ReduceScatter():
            return sum(move.counts)
        case AllToAll():
            return sum(move.sends(rank))


def result_size(move: Move, rank: int) -> int:
    """How many elements `rank` gets from a move."""
    match move:
        case AllReduce() | BroadcastFrom():
            return move.num_elements
        case AllGather():
            return sum(move.counts)
        case ReduceScatter():
            return move.counts[move.group.index(rank)]
        case AllToAll():
            return sum(move.receives(rank))


def check_submission(
    move: Move, payload: Tensor, out: Tensor | None, *, key: str, rank: int
) -> None:
    """Refuse what no wire could carry.

    Raises:
        ValueError: this rank is not in the group, or a buffer or a count does not fit.
        TypeError: the dtype cannot be reduced on a wire.
    """
    what = f"key {key!r} ({describe(move)})"
    if rank not in move.group:
        raise ValueError(f"{what}: rank {rank} is not in the group; do not submit it")
    _check_counts(move, what)
    _check_buffer(what, "payload", payload, move.dtype, payload_size(move, rank))
    if out is not None:
        _check_buffer(what, "out", out, move.dtype, result_size(move, rank))
        if out.device != payload.device:
            raise ValueError(
                f"{what}: out is on {out.device}, the payload on {payload.device}"
            )
    reduces = isinstance(move, AllReduce | ReduceScatter)
    if reduces and move.dtype not in REDUCIBLE:
        raise TypeError(
            f"{what}: {move.dtype} cannot be reduced; convert the payload to float32 "
            "(or int32, or uint8 for bool) first"
        )


def _check_counts(move: Move, what: str) -> None:
    size = len(move.group)
    if len(set(move.group)) != size:
        raise ValueError(f"{what}: a rank stands twice in the group {move.group}")
    match move:
        case AllReduce() | BroadcastFrom():
            shape_fits, counts = True, [move.num_elements]
        case AllGather() | ReduceScatter():
            shape_fits, counts = len(move.counts) == size, list(move.counts)
        case AllToAll():
            shape_fits = [len(row) for row in move.counts] == [size] * size
            counts = [n for row in move.counts for n in row]
    if not shape_fits:
        raise ValueError(f"{what}: {size} members need {size} counts each way")
    if min(counts) < 0:
        raise ValueError(f"{what}: a count is negative: {min(counts)}")
    if isinstance(move, BroadcastFrom) and move.root not in move.group:
        raise ValueError(f"{what}: the root, rank {move.root}, is not in the group")


def _check_buffer(
    what: str, name: str, buffer: Tensor, dtype: torch.dtype, size: int
) -> None:
    fits = buffer.dtype == dtype and buffer.shape == (size,) and buffer.is_contiguous()
    if not fits:
        layout = "contiguous" if buffer.is_contiguous() else "strided"
        raise ValueError(
            f"{what}: the {name} is {layout} {buffer.dtype} of shape "
            f"{tuple(buffer.shape)}; it needs to be contiguous {dtype} of shape "
            f"({size},)"
        )
