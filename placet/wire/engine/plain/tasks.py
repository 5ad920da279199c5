"""A submitted task as it runs: how far each of its instructions is.

Nothing here knows of sockets: `sendable` and `take` say which bytes may go to a peer,
`receive` puts those of a peer where they belong, `run_local` does the rest.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from placet.wire.engine.core import State, Task
from placet.wire.engine.frames import SLICE_BYTES
from placet.wire.engine.plain.reductions import (
    bytes_of,
    check_reduction,
    dtype_of,
    reduce_bytes,
)
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place

_LOCAL = (Kind.REDUCE, Kind.COPY)


@dataclass
class Lane:
    """Instructions that send to one peer, or receive from one, in order.

    Args:
        order: their indices.
        total_bytes: of all of them.
        at: which of `order` is next.
        here_bytes: how much of that one is taken (or received).
        moved_bytes: how much of the lane is.
    """

    order: list[int] = field(default_factory=list)
    total_bytes: int = 0
    at: int = 0
    here_bytes: int = 0
    moved_bytes: int = 0

    @property
    def complete(self) -> bool:
        """Whether all of it has been taken (or received)."""
        return self.moved_bytes == self.total_bytes

    @property
    def begun(self) -> bool:
        """Whether it stands in the middle."""
        return 0 < self.moved_bytes < self.total_bytes

    def move(self, num_bytes: int, whole_bytes: int) -> None:
        """Go on by so much of the next instruction, which has `whole_bytes`."""
        self.moved_bytes += num_bytes
        self.here_bytes += num_bytes
        if self.here_bytes == whole_bytes:
            self.at, self.here_bytes = self.at + 1, 0


class Running:
    """One task, and how far it is.

    Raises:
        ValueError: the schedule does not fit the tensors.
        TypeError: a tensor is not flat, contiguous and on the CPU.
    """

    def __init__(self, handle: int, task: Task) -> None:
        schedule = task.schedule
        self.handle = handle
        self.collective = task.collective
        self.fingerprint = task.fingerprint
        self.priority = task.priority
        self.notify = task.notify
        self.state = State.PENDING
        self.heard: set[int] = set()
        self.told: set[int] = set()
        self.sends: dict[int, Lane] = {}
        self.receives: dict[int, Lane] = {}
        self.itemsize = schedule.itemsize
        self._reduction = schedule.reduction
        self._dtype = dtype_of(schedule.dtype_name)
        self._buffers = _buffers(task)
        self._instructions = schedule.instructions
        for instruction in schedule.instructions:
            _check(instruction, self._buffers, schedule.dtype_name, self._reduction)
        self._done = [0] * len(schedule.instructions)
        self._local = [
            i for i, x in enumerate(schedule.instructions) if x.kind in _LOCAL
        ]
        self._left_bytes = sum(x.num_bytes for x in schedule.instructions)
        for index, instruction in enumerate(schedule.instructions):
            if instruction.kind not in _LOCAL and instruction.num_bytes:
                sending = instruction.kind is Kind.SEND
                lanes = self.sends if sending else self.receives
                lane = lanes.setdefault(instruction.peer, Lane())
                lane.order.append(index)
                lane.total_bytes += instruction.num_bytes

    @property
    def peers(self) -> set[int]:
        """All peers of its schedule."""
        return set(self.sends) | set(self.receives)

    @property
    def complete(self) -> bool:
        """Whether all instructions are done."""
        return self._left_bytes == 0

    def needs(self, peer: int) -> bool:
        """Whether something is still to be sent to the peer or received from it."""
        lanes = (self.sends.get(peer), self.receives.get(peer))
        return any(lane is not None and not lane.complete for lane in lanes)

    def expected_bytes(self, peer: int) -> int:
        """What the peer is to send, in all."""
        lane = self.receives.get(peer)
        return 0 if lane is None else lane.total_bytes

    def sendable(self, peer: int, most_bytes: int) -> int:
        """Bytes, at most so many, that the next frame to the peer may hold."""
        lane = self.sends[peer]
        if lane.complete:
            return 0
        free = self._limit(lane.order[lane.at]) - lane.here_bytes
        num_bytes = min(free, most_bytes, SLICE_BYTES)
        return max(num_bytes, 0) // self.itemsize * self.itemsize

    def take(self, peer: int, num_bytes: int) -> tuple[int, int, memoryview]:
        """The next bytes for the peer: instruction, start in the lane, memory."""
        lane = self.sends[peer]
        index, start = lane.order[lane.at], lane.moved_bytes
        instruction = self._instructions[index]
        memory = self._view(instruction.src, lane.here_bytes, num_bytes)
        lane.move(num_bytes, instruction.num_bytes)
        self.told.add(peer)
        return index, start, memory.numpy().data

    def sent(self, index: int, num_bytes: int) -> None:
        """Bytes taken from an instruction are gone, in the order they were taken."""
        self._advance(index, num_bytes)

    def receive(self, peer: int, data: memoryview) -> None:
        """Put the next bytes of the peer where they belong; whole elements."""
        lane, position = self.receives[peer], 0
        came = torch.frombuffer(data, dtype=torch.uint8)
        while position < len(data):
            index = lane.order[lane.at]
            instruction, start = self._instructions[index], lane.here_bytes
            num_bytes = min(len(data) - position, instruction.num_bytes - start)
            part = came[position : position + num_bytes]
            dst = self._view(instruction.dst, start, num_bytes)
            if instruction.kind is Kind.RECEIVE:
                dst.copy_(part)
            else:
                self._reduce(dst, self._view(instruction.src, start, num_bytes), part)
            lane.move(num_bytes, instruction.num_bytes)
            self._advance(index, num_bytes)
            position += num_bytes

    def run_local(self) -> None:
        """Do what can be done of the copies and reductions."""
        moved = True
        while moved and self._local:
            moved = False
            for index in self._local:
                start = self._done[index]
                num_bytes = self._limit(index) - start
                if num_bytes > 0:
                    self._run(self._instructions[index], start, num_bytes)
                    self._advance(index, num_bytes)
                    moved = True
            self._local = [
                i
                for i in self._local
                if self._done[i] < self._instructions[i].num_bytes
            ]

    def end(self, state: State) -> None:
        """Done or failed: the buffers are the caller's again."""
        self.state = state
        self._buffers = {}
        self._instructions = ()
        self._local = []

    def _limit(self, index: int) -> int:
        """How far an instruction may be, by what it follows; whole elements."""
        instruction = self._instructions[index]
        limit = instruction.num_bytes
        for other, start in instruction.follows:
            limit = min(limit, self._done[other] - start)
        return limit // self.itemsize * self.itemsize

    def _advance(self, index: int, num_bytes: int) -> None:
        self._done[index] += num_bytes
        self._left_bytes -= num_bytes

    def _view(self, place: Place, start: int, num_bytes: int) -> Tensor:
        first = place.start + start
        return self._buffers[place.buffer][first : first + num_bytes]

    def _run(self, instruction: Instruction, start: int, num_bytes: int) -> None:
        dst = self._view(instruction.dst, start, num_bytes)
        src = self._view(instruction.src, start, num_bytes)
        if instruction.kind is Kind.COPY:
            dst.copy_(src)
        else:
            self._reduce(dst, src, self._view(instruction.other, start, num_bytes))

    def _reduce(self, dst: Tensor, src: Tensor, other: Tensor) -> None:
        reduce_bytes(dst, src, other, dtype=self._dtype, reduction=self._reduction)


def _buffers(task: Task) -> dict[Buffer, Tensor]:
    for name, tensor in (("payload", task.payload), ("out", task.out)):
        on_cpu = tensor.device.type == "cpu"
        if tensor.dim() != 1 or not tensor.is_contiguous() or not on_cpu:
            raise TypeError(
                f"{name} has shape {tuple(tensor.shape)}, strides {tensor.stride()} on"
                f" {tensor.device}; needed: flat, contiguous, on the CPU"
            )
    return {
        Buffer.PAYLOAD: bytes_of(task.payload),
        Buffer.OUT: bytes_of(task.out),
        Buffer.SCRATCH: torch.empty(task.schedule.scratch_bytes, dtype=torch.uint8),
    }


_PLACES = {
    Kind.SEND: ("src",),
    Kind.RECEIVE: ("dst",),
    Kind.RECEIVE_REDUCE: ("src", "dst"),
    Kind.REDUCE: ("src", "other", "dst"),
    Kind.COPY: ("src", "dst"),
}


def _check(
    instruction: Instruction,
    buffers: dict[Buffer, Tensor],
    dtype_name: str,
    reduction: str,
) -> None:
    """Raise unless the instruction stays within the buffers."""
    if instruction.kind in (Kind.RECEIVE_REDUCE, Kind.REDUCE):
        check_reduction(dtype_name, reduction)
    for name in _PLACES[instruction.kind]:
        place: Place = getattr(instruction, name)
        size = buffers[place.buffer].numel()
        if not 0 <= place.start <= place.start + instruction.num_bytes <= size:
            raise ValueError(
                f"{instruction.kind.name} of {instruction.num_bytes} bytes at"
                f" {place.start} of {place.buffer.name}, which has {size} bytes"
            )
