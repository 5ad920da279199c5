"""What the wire works out once for a move, and keeps: submitting it again is cheap."""

from dataclasses import dataclass, replace

from torch import Tensor

from placet.boxing.moves import AllToAll, Move
from placet.wire.check import payload_size, result_size
from placet.wire.engine.compile import compile_move
from placet.wire.engine.keys import fingerprint, scope_of, short_text
from placet.wire.engine.schedule import Schedule
from placet.wire.interface import Traffic


@dataclass(frozen=True)
class Prepared:
    """A move as this rank carries it.

    Args:
        move: what was submitted.
        scope: where its keys count.
        control: whether it is one of the wire's own moves.
        fingerprint: a hash of the move.
        schedule: this rank's part; peers are the core's.
        num_given: elements of the payload.
        num_result: elements of the result.
        idle: whether there is nothing to move: no bytes, or nobody else.
        traffic: bytes that this rank will have sent and received.
        text: the move in one short line.
        partners: peers that this rank sends to or receives from.
    """

    move: Move
    scope: bytes
    control: bool
    fingerprint: int
    schedule: Schedule
    num_given: int
    num_result: int
    idle: bool
    traffic: Traffic
    text: str
    partners: frozenset[int]

    @property
    def alone(self) -> bool:
        """Whether this rank is the whole group."""
        return len(self.move.group) == 1

    def what(self, key: str) -> str:
        """Key and move, as errors begin."""
        return f"key {key!r} ({self.text})"


def prepare_move(
    move: Move, rank: int, peers: tuple[int, ...], *, control: bool = False
) -> Prepared:
    """Work out a move.

    Args:
        move: one that `check_submission` has passed.
        rank: this rank.
        peers: the core's number of each rank.
        control: whether it is one of the wire's own.
    """
    schedule = compile_move(move, rank)
    if peers != tuple(range(len(peers))):
        schedule = _renumbered(schedule, peers)
    return Prepared(
        move=move,
        scope=scope_of(move.group, control=control),
        control=control,
        fingerprint=fingerprint(move),
        schedule=schedule,
        num_given=payload_size(move, rank),
        num_result=result_size(move, rank),
        idle=len(move.group) == 1 or not schedule.instructions,
        traffic=Traffic(schedule.sent_bytes, schedule.received_bytes),
        text=short_text(move),
        partners=frozenset(i.peer for i in schedule.instructions if i.peer >= 0),
    )


def fits(prepared: Prepared, payload: Tensor, out: Tensor | None) -> bool:
    """Whether buffers fit a move; where not, `check_submission` says why."""
    dtype = prepared.move.dtype
    return _fits(payload, dtype, prepared.num_given) and (
        out is None or _fits(out, dtype, prepared.num_result)
    )


def buffer_problem(prepared: Prepared, payload: Tensor, out: Tensor | None) -> str:
    """What the engine cannot do with buffers that fit; empty if there is nothing."""
    for name, buffer in (("payload", payload), ("out", out)):
        if buffer is not None and not buffer.is_cpu:
            return (
                f"the {name} is on {buffer.device}; the engine moves CPU memory: give "
                f"{name}.cpu(), or submit to a C10dWire over NCCL"
            )
    if out is None or not isinstance(prepared.move, AllToAll) or not out.numel():
        return ""
    if out.data_ptr() == payload.data_ptr() and not prepared.alone:
        return "an all-to-all cannot write over its payload; give another out"
    return ""


def _fits(buffer: Tensor, dtype: object, size: int) -> bool:
    return (
        buffer.dtype is dtype
        and buffer.dim() == 1
        and buffer.numel() == size
        and buffer.is_contiguous()
    )


def _renumbered(schedule: Schedule, peers: tuple[int, ...]) -> Schedule:
    return replace(
        schedule,
        instructions=tuple(
            i if i.peer < 0 else replace(i, peer=peers[i.peer])
            for i in schedule.instructions
        ),
    )
