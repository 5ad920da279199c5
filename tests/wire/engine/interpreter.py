"""Runs the schedules of all members of a move by their definition, in random order.

Everything is allowed that `placet.wire.engine.schedule` allows: any instruction that
can go on may, by any number of whole elements; a channel holds a bounded number of
bytes for each pair; what is in it has left the sender's memory.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule

REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}

Key: TypeAlias = Callable[[int, Instruction], float]
"""How much an instruction of a rank is put off; drawn anew each time it is asked."""

JUNK = 0x5A


@dataclass
class Rank:
    """One rank's buffers, as bytes, and how far it is."""

    schedule: Schedule
    buffers: dict[Buffer, Tensor]
    done: list[int] = field(default_factory=list)
    lane_before: list[int] = field(default_factory=list)
    sent: int = 0
    received: int = 0

    def __post_init__(self) -> None:
        self.done = [0] * len(self.schedule.instructions)
        last: dict[tuple[bool, int], int] = {}
        for i, instruction in enumerate(self.schedule.instructions):
            lane = (instruction.kind is Kind.SEND, instruction.peer)
            self.lane_before.append(last.get(lane, -1) if lane[1] >= 0 else -1)
            last[lane] = i


def start(schedule: Schedule, dtype: torch.dtype, payload: Tensor, out: Tensor) -> Rank:
    """A rank before its first step; scratch memory holds junk."""
    scratch = torch.full((schedule.scratch_bytes,), JUNK, dtype=torch.uint8)
    assert schedule.dtype_name == str(dtype)
    return Rank(
        schedule,
        {
            Buffer.PAYLOAD: payload.view(torch.uint8),
            Buffer.OUT: out.view(torch.uint8),
            Buffer.SCRATCH: scratch,
        },
    )


def run(
    ranks: Mapping[int, Rank],
    dtype: torch.dtype,
    *,
    channel_bytes: int,
    put_off: Key,
    dice: random.Random,
    greedy: bool = False,
) -> None:
    """Until all is done.

    Args:
        ranks: all members, by rank.
        channel_bytes: what a channel holds.
        put_off: of the instructions that can go on, the least put off goes first.
        dice: draws how many elements it does.
        greedy: as many as it can instead.
    """
    channels: dict[tuple[int, int], deque[Tensor]] = {}
    channel_bytes -= channel_bytes % dtype.itemsize
    while True:
        ready = [
            (put_off(rank, instruction), rank, i, most)
            for rank, state in ranks.items()
            for i, instruction in enumerate(state.schedule.instructions)
            if (most := _possible(rank, state, i, channels, channel_bytes))
        ]
        if not ready:
            break
        _, rank, i, most = min(ready)
        elements = most // dtype.itemsize
        count = elements if greedy else dice.randint(1, elements)
        _do(rank, ranks[rank], i, count * dtype.itemsize, channels, dtype)
    for rank, state in ranks.items():
        for i, instruction in enumerate(state.schedule.instructions):
            assert state.done[i] == instruction.num_bytes, (rank, i, instruction)
    left = {pair for pair, held in channels.items() if held}
    assert not left, f"nobody receives what is between {left}"


def _possible(
    rank: int,
    state: Rank,
    index: int,
    channels: Mapping[tuple[int, int], deque[Tensor]],
    channel_bytes: int,
) -> int:
    """How many bytes an instruction could do now."""
    program, done = state.schedule.instructions, state.done
    instruction = program[index]
    most = instruction.num_bytes
    if done[index] == most:
        return 0
    for other, first in instruction.follows:
        most = min(most, done[other] - first)
    most -= done[index]
    if most <= 0:
        return 0
    sends = instruction.kind is Kind.SEND
    earlier = state.lane_before[index]
    if earlier >= 0 and done[earlier] < program[earlier].num_bytes:
        return 0
    if instruction.peer >= 0:
        pair = (rank, instruction.peer) if sends else (instruction.peer, rank)
        held = sum(piece.numel() for piece in channels.get(pair, ()))
        most = min(most, channel_bytes - held if sends else held)
    return most


def _do(
    rank: int,
    state: Rank,
    index: int,
    num_bytes: int,
    channels: dict[tuple[int, int], deque[Tensor]],
    dtype: torch.dtype,
) -> None:
    instruction, first = state.schedule.instructions[index], state.done[index]

    def at(place: Place) -> Tensor:
        begin = place.start + first
        assert begin + num_bytes <= state.buffers[place.buffer].numel()
        return state.buffers[place.buffer][begin : begin + num_bytes]

    def reduced(a: Tensor, b: Tensor) -> Tensor:
        reduce = REDUCE[state.schedule.reduction]
        return reduce(a.clone().view(dtype), b.clone().view(dtype)).view(torch.uint8)

    state.done[index] += num_bytes
    match instruction.kind:
        case Kind.SEND:
            channel = channels.setdefault((rank, instruction.peer), deque())
            channel.append(at(instruction.src).clone())
            state.sent += num_bytes
        case Kind.RECEIVE:
            arrived = _take(channels[instruction.peer, rank], num_bytes)
            at(instruction.dst).copy_(arrived)
            state.received += num_bytes
        case Kind.RECEIVE_REDUCE:
            arrived = _take(channels[instruction.peer, rank], num_bytes)
            at(instruction.dst).copy_(reduced(at(instruction.src), arrived))
            state.received += num_bytes
        case Kind.REDUCE:
            total = reduced(at(instruction.src), at(instruction.other))
            at(instruction.dst).copy_(total)
        case Kind.COPY:
            at(instruction.dst).copy_(at(instruction.src).clone())


def _take(channel: deque[Tensor], num_bytes: int) -> Tensor:
    taken = []
    while num_bytes:
        piece = channel.popleft()
        if piece.numel() > num_bytes:
            channel.appendleft(piece[num_bytes:])
            piece = piece[:num_bytes]
        taken.append(piece)
        num_bytes -= piece.numel()
    return torch.cat(taken)
