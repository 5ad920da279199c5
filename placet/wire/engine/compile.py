"""Moves to schedules."""

from collections.abc import Callable
from functools import lru_cache

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllReduceAlgorithm,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
)
from placet.wire.check import payload_size, result_size
from placet.wire.engine import direct, doubling, exchange, hierarchical, ring, tree
from placet.wire.engine.pieces import append, schedule_of
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule
from placet.wire.engine.verify import verify

_ALL_REDUCES: dict[AllReduceAlgorithm, Callable[[AllReduce, int], Schedule]] = {
    "ring": ring.all_reduce,
    "direct": direct.all_reduce,
    "exchange": exchange.all_reduce,
    "doubling": doubling.all_reduce,
    "hierarchical": hierarchical.all_reduce,
}


@lru_cache(maxsize=4096)
def compile_move(move: Move, rank: int) -> Schedule:
    """What one rank does for a move; it is the same object for the same arguments.

    The schedules of all members fit together: what one sends another, the other
    receives, in that order. They send and receive what the move says, byte for byte.
    The result may lie where the payload does, for an all-reduce and a broadcast.

    Args:
        move: one that `placet.wire.check` accepts.
        rank: a member of its group.

    Raises:
        ValueError: the move's algorithm would need too much memory.
    """
    itemsize = move.dtype.itemsize
    if len(move.group) == 1:
        schedule = _alone(move, payload_size(move, rank) * itemsize)
    else:
        schedule = _schedule(move, rank)
    verify(
        schedule,
        payload_bytes=payload_size(move, rank) * itemsize,
        out_bytes=result_size(move, rank) * itemsize,
        in_place=isinstance(move, AllReduce | BroadcastFrom),
    )
    return schedule


def _alone(move: Move, num_bytes: int) -> Schedule:
    program: list[Instruction] = []
    src, dst = Place(Buffer.PAYLOAD, 0), Place(Buffer.OUT, 0)
    append(program, Instruction(Kind.COPY, num_bytes, src=src, dst=dst))
    return schedule_of(move, program)


def _schedule(move: Move, rank: int) -> Schedule:
    match move:
        case AllReduce():
            return _ALL_REDUCES[move.algorithm](move, rank)
        case AllGather():
            if move.algorithm == "ring":
                return ring.all_gather(move, rank)
            return direct.all_gather(move, rank)
        case ReduceScatter():
            if move.algorithm == "ring":
                return ring.reduce_scatter(move, rank)
            return direct.reduce_scatter(move, rank)
        case AllToAll():
            return direct.all_to_all(move, rank)
        case BroadcastFrom():
            return tree.broadcast(move, rank)
