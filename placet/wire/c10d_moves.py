"""How a move runs on a c10d process group, and what that sends.

What only moves elements goes as bytes, so any dtype travels (gloo lacks int16, float8).

    AllReduce       all_reduce
    AllGather       all_gather_single where all counts are equal, else pairs
    ReduceScatter   all_to_all_single, then a local reduction in group order; on NCCL
                    reduce_scatter_single where all counts are equal
    AllToAll        all_to_all_single, or pairs where under half of the counts are not 0
    BroadcastFrom   broadcast

*Pairs* are isend and irecv: members without a count do not take part, and no buffer is
repeated. An empty collective is not called at all (gloo divides by its size,
pytorch#85234).
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    MoveReduction,
    ReduceScatter,
    describe,
)
from placet.wire.check import result_size
from placet.wire.interface import Traffic
from placet.wire.twin_moves import REDUCE

HEADER_BYTES = 48
"""gloo's header. A message costs three at most: its data's, and a notice each way."""

_SEGMENT_BYTES = 2**20

_OPS: dict[MoveReduction, dist.ReduceOp.RedOpType] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


@dataclass(frozen=True)
class Started:
    """A move under way.

    Args:
        works: to be waited for, in order.
        finish: gives the result; called once, after all works.
        traffic: what the calls send and receive on this rank.
        can_poll: whether the works report completion before someone waits.
    """

    works: tuple[dist.Work, ...]
    finish: Callable[[], Tensor]
    traffic: Traffic
    can_poll: bool = True


@dataclass(frozen=True)
class Call:
    """One submission: a move with its buffers, its group and this rank's place in it.

    Args:
        move: what to do.
        payload: what this rank gives.
        out: where the result goes, or None for a new tensor.
        group: a process group whose ranks are `move.group`, in that order.
        rank: this rank, as in `move.group`.
        key: names the move.
    """

    move: Move
    payload: Tensor
    out: Tensor | None
    group: dist.ProcessGroup
    rank: int
    key: str

    @property
    def me(self) -> int:
        """This rank's place in the group."""
        return self.move.group.index(self.rank)

    def result(self) -> Tensor:
        """The buffer the result goes to."""
        if self.out is not None:
            return self.out
        return self.payload.new_empty(result_size(self.move, self.rank))


def start(call: Call) -> Started:
    """Start a move; nothing here waits.

    Raises:
        ValueError: the move asks for an algorithm that a process group does not have.
    """
    move = call.move
    if len(move.group) == 1:
        return _alone(call)
    _check_algorithm(call)
    match move:
        case AllReduce():
            return _all_reduce(call, move)
        case AllGather():
            return _all_gather(call, move)
        case ReduceScatter():
            return _reduce_scatter(call, move)
        case AllToAll():
            return _all_to_all(call, move)
        case BroadcastFrom():
            return _broadcast(call, move)


def most_header_bytes(move: Move) -> int:
    """At most so many bytes of gloo's headers are sent and received by one rank.

    A ring takes size - 1 rounds, twice for an all-reduce, each of at least two segments
    of at most 1 MiB; pairs take one message a peer.
    """
    rounds = len(move.group) - 1
    match move:
        case AllReduce():
            part_bytes = move.num_elements * move.dtype.itemsize / len(move.group)
            num_sent = 2 * rounds * max(2, math.ceil(part_bytes / _SEGMENT_BYTES) + 1)
        case AllGather():
            num_sent = 2 * rounds
        case ReduceScatter() | AllToAll() | BroadcastFrom():
            num_sent = rounds
    return 2 * num_sent * 3 * HEADER_BYTES


def _check_algorithm(call: Call) -> None:
    # Another one would give the right values, but not the bytes that the move predicts.
    match call.move:
        case AllReduce(algorithm=asked):
            known = "ring"
        case AllGather(chosen=asked) if asked is not None:
            known = replace(call.move, chosen=None).algorithm
        case ReduceScatter(algorithm=asked):
            known = "direct"
        case _:
            return
    if asked != known:
        raise ValueError(
            f"key {call.key!r} ({describe(call.move)}): algorithm {asked!r}; a process "
            f"group runs this one as {known!r} only: leave the algorithm out"
        )


def _alone(call: Call) -> Started:
    result = call.result()
    if result.data_ptr() != call.payload.data_ptr():
        result.copy_(call.payload)
    return Started((), lambda: result, Traffic(0, 0))


def _nothing(result: Tensor) -> Started:
    return Started((), lambda: result, Traffic(0, 0))


def _all_reduce(call: Call, move: AllReduce) -> Started:
    result = call.result()
    if result.data_ptr() != call.payload.data_ptr():
        result.copy_(call.payload)
    if not move.num_elements:
        return _nothing(result)
    op = _OPS[move.reduction]
    work = dist.all_reduce(result, op=op, group=call.group, async_op=True)
    traffic = Traffic(move.sent_bytes(call.rank), move.received_bytes(call.rank))
    return Started(_works(work), lambda: result, traffic)


def _all_gather(call: Call, move: AllGather) -> Started:
    result, size = call.result(), len(move.group)
    if not sum(move.counts):
        return _nothing(result)
    mine = call.payload.view(torch.uint8)
    theirs = torch.split(result.view(torch.uint8), _bytes(move.counts, move.dtype))
    if len(set(move.counts)) > 1:
        theirs[call.me].copy_(mine)
        return _pairs(call, [mine] * size, theirs, result)
    work = dist.all_gather_single(
        result.view(torch.uint8), mine, group=call.group, async_op=True
    )
    traffic = Traffic(mine.nbytes * (size - 1), result.nbytes - mine.nbytes)
    return Started(_works(work), lambda: result, traffic)


def _reduce_scatter(call: Call, move: ReduceScatter) -> Started:
    result, size, payload = call.result(), len(move.group), call.payload
    if not sum(move.counts):
        return _nothing(result)
    traffic = Traffic(payload.nbytes - result.nbytes, result.nbytes * (size - 1))
    if payload.is_cuda and len(set(move.counts)) == 1:
        op = _OPS[move.reduction]
        work = dist.reduce_scatter_single(
            result, payload, op=op, group=call.group, async_op=True
        )
        return Started(_works(work), lambda: result, traffic)
    terms = payload.new_empty(size, result.numel())
    work = dist.all_to_all_single(
        terms.view(-1).view(torch.uint8),
        payload.view(torch.uint8),
        _bytes([result.numel()] * size, move.dtype),
        _bytes(move.counts, move.dtype),
        group=call.group,
        async_op=True,
    )

    def finish() -> Tensor:
        reduce = REDUCE[move.reduction]
        total = terms[0]
        for term in terms[1:]:
            total = reduce(total, term)
        return result.copy_(total)

    return Started(_works(work), finish, traffic)


def _all_to_all(call: Call, move: AllToAll) -> Started:
    result, size, me = call.result(), len(move.group), call.me
    out_bytes = _bytes(move.receives(call.rank), move.dtype)
    in_bytes = _bytes(move.sends(call.rank), move.dtype)
    mine, theirs = call.payload.view(torch.uint8), result.view(torch.uint8)
    pairs = sum(
        bool(count)
        for i, row in enumerate(move.counts)
        for j, count in enumerate(row)
        if i != j
    )
    if 2 * pairs < size * (size - 1):
        to, come = torch.split(mine, in_bytes), torch.split(theirs, out_bytes)
        come[me].copy_(to[me])
        return _pairs(call, to, come, result)
    work = dist.all_to_all_single(
        theirs, mine, out_bytes, in_bytes, group=call.group, async_op=True
    )
    traffic = Traffic(sum(in_bytes) - in_bytes[me], sum(out_bytes) - out_bytes[me])
    return Started(_works(work), lambda: result, traffic)


def _broadcast(call: Call, move: BroadcastFrom) -> Started:
    result = call.result()
    if call.rank == move.root and result.data_ptr() != call.payload.data_ptr():
        result.copy_(call.payload)
    if not move.num_elements:
        return _nothing(result)
    work = dist.broadcast(
        result.view(torch.uint8),
        group=call.group,
        group_src=move.group.index(move.root),
        async_op=True,
    )
    traffic = Traffic(move.sent_bytes(call.rank), move.received_bytes(call.rank))
    return Started(_works(work), lambda: result, traffic)


def _pairs(
    call: Call, to: Sequence[Tensor], come: Sequence[Tensor], result: Tensor
) -> Started:
    """Send to[i] to member i and receive come[i] from it, where not empty."""
    size, me = len(to), call.me
    # gloo's tags keep different moves apart; NCCL has none and goes by order.
    tag = zlib.crc32(call.key.encode()) >> 1
    ops = []
    sent = received = 0
    for distance in range(1, size):
        src, dst = (me - distance) % size, (me + distance) % size
        if come[src].numel():
            received += come[src].nbytes
            ops.append(_p2p(dist.irecv, come[src], src, call.group, tag))
        if to[dst].numel():
            sent += to[dst].nbytes
            ops.append(_p2p(dist.isend, to[dst], dst, call.group, tag))
    works = dist.batch_isend_irecv(ops) if ops else []
    return Started(
        tuple(works), lambda: result, Traffic(sent, received), can_poll=result.is_cuda
    )


def _p2p(
    op: Callable[..., dist.Work | None],
    buffer: Tensor,
    peer: int,
    group: dist.ProcessGroup,
    tag: int,
) -> dist.P2POp:
    return dist.P2POp(op, buffer, group=group, tag=tag, group_peer=peer)


def _bytes(counts: Sequence[int], dtype: torch.dtype) -> list[int]:
    return [count * dtype.itemsize for count in counts]


def _works(work: dist.Work | None) -> tuple[dist.Work, ...]:
    assert work is not None, "this rank is a member of the group"
    return (work,)
