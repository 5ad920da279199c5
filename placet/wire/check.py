"""What every wire asks of a submission, so that all refuse the same ones.

A job that runs on the twin must run on gloo: the twin could reduce any dtype that torch
adds, but gloo and NCCL cannot.
"""

from functools import lru_cache

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
    move: Move,
    payload: Tensor,
    out: Tensor | None,
    *,
    key: str,
    rank: int,
    num_ranks: int,
) -> None:
    """Refuse what no wire could carry.

    Raises:
        ValueError: this rank is not in the group, the wire has no such rank, or a
            buffer or a count does not fit.
        TypeError: the dtype cannot be reduced on a wire.
    """
    problem = _problem(move, payload, out, rank, num_ranks)
    if problem is not None:
        raise ValueError(f"key {key!r} ({describe(move)}): {problem}")
    if isinstance(move, AllReduce | ReduceScatter) and move.dtype not in REDUCIBLE:
        raise TypeError(
            f"key {key!r} ({describe(move)}): {move.dtype} cannot be reduced; convert "
            "the payload to float32 (or int32, or uint8 for bool) first"
        )


def _problem(
    move: Move, payload: Tensor, out: Tensor | None, rank: int, num_ranks: int
) -> str | None:
    if rank not in move.group:
        return f"rank {rank} is not in the group; do not submit it"
    strangers = [other for other in move.group if not 0 <= other < num_ranks]
    if strangers:
        return (
            f"the group names rank {strangers[0]}, the wire has ranks 0 to "
            f"{num_ranks - 1}; name these"
        )
    problem = _count_problem(move)
    if problem is not None:
        return problem
    size = payload_size(move, rank)
    if not _fits(payload, move.dtype, size):
        return _misfit("payload", payload, move.dtype, size)
    if out is None:
        return None
    size = result_size(move, rank)
    if not _fits(out, move.dtype, size):
        return _misfit("out", out, move.dtype, size)
    if out.device != payload.device:
        return f"out is on {out.device}, the payload on {payload.device}"
    return None


@lru_cache(maxsize=4096)
def _count_problem(move: Move) -> str | None:
    size = len(move.group)
    if len(set(move.group)) != size:
        return f"a rank stands twice in the group {move.group}"
    match move:
        case AllReduce() | BroadcastFrom():
            shape_fits, counts = True, [move.num_elements]
        case AllGather() | ReduceScatter():
            shape_fits, counts = len(move.counts) == size, list(move.counts)
        case AllToAll():
            shape_fits = [len(row) for row in move.counts] == [size] * size
            counts = [n for row in move.counts for n in row]
    if not shape_fits:
        return f"{size} members need {size} counts each way"
    if min(counts) < 0:
        return f"a count is negative: {min(counts)}"
    if isinstance(move, BroadcastFrom) and move.root not in move.group:
        return f"the root, rank {move.root}, is not in the group"
    return None


def _fits(buffer: Tensor, dtype: torch.dtype, size: int) -> bool:
    return (
        buffer.dtype == dtype
        and buffer.dim() == 1
        and buffer.numel() == size
        and buffer.is_contiguous()
    )


def _misfit(name: str, buffer: Tensor, dtype: torch.dtype, size: int) -> str:
    layout = "contiguous" if buffer.is_contiguous() else "strided"
    return (
        f"the {name} is {layout} {buffer.dtype} of shape {tuple(buffer.shape)}; it "
        f"needs to be contiguous {dtype} of shape ({size},)"
    )
