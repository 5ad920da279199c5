"""Run a lowered step on this rank: `start` packs and submits, `finish` unpacks.

    pending = start(lowered, tensors, wire, key="grads.0")
    ...                                        # compute, while the bytes travel
    tensors = pending.finish()

An all-reduce works in place on a payload that was packed; see `packing` for the rest.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from placet.boxing.ledger import Entry, Ledger
from placet.boxing.lowered import Lowered
from placet.boxing.moves import AllReduce, Move
from placet.boxing.packing import Tensors, pack, unpack
from placet.boxing.plan import BoxingPlan


class CarriesTraffic(Protocol):
    """Bytes that a move really took."""

    @property
    def sent_bytes(self) -> int:
        """Bytes sent by this rank."""
        ...

    @property
    def received_bytes(self) -> int:
        """Bytes received by this rank."""
        ...


class CarriesResult(Protocol):
    """What `submit` gives: see `placet.wire.interface.Future`."""

    def done(self) -> bool:
        """Whether `wait` returns at once."""
        ...

    def wait(self) -> Tensor:
        """The arrival, flat."""
        ...

    def traffic(self) -> CarriesTraffic:
        """Bytes sent and received, once done."""
        ...


class Carrier(Protocol):
    """Whatever carries moves: see `placet.wire.interface.Wire`."""

    rank: int

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> CarriesResult:
        """Start a move."""
        ...


@dataclass(frozen=True)
class Record:
    """Where a step's bytes are written down.

    Args:
        ledger: this rank's ledger.
        boxing: the boxing's name in it.
        step: the training step.
    """

    ledger: Ledger
    boxing: str
    step: int = 0


@dataclass(frozen=True)
class Pending:
    """A step whose bytes are on their way."""

    lowered: Lowered
    tensors: Tensors
    rank: int
    device: torch.device
    future: CarriesResult | None
    started_seconds: float
    record: Record | None = None

    def done(self) -> bool:
        """Whether `finish` returns without waiting for others."""
        return self.future is None or self.future.done()

    def finish(self, into: Sequence[Tensor] | None = None) -> Tensors:
        """The outputs, one per tensor; () on a rank that gets no part.

        Call it once: an output may be made in place of the arrival.

        Args:
            into: tensors of the outputs' shapes to write them into, which saves a copy.
        """
        arrival = None if self.future is None else self.future.wait()
        if self.record is not None and self.future is not None:
            self._write(self.record, self.future.traffic())
        with torch.no_grad():
            return unpack(self.lowered, self.tensors, arrival, self.device, into)

    def _write(self, record: Record, traffic: CarriesTraffic) -> None:
        move = self.lowered.move
        assert move is not None
        entry = Entry(
            boxing=record.boxing,
            step=record.step,
            predicted_sent_bytes=move.sent_bytes(self.rank),
            predicted_received_bytes=move.received_bytes(self.rank),
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            start_seconds=self.started_seconds,
            end_seconds=time.monotonic(),
        )
        record.ledger.record(entry)


def start(
    lowered: Lowered,
    tensors: Sequence[Tensor],
    wire: Carrier,
    *,
    key: str,
    priority: int = 0,
    consume: bool = False,
    record: Record | None = None,
    device: torch.device | None = None,
) -> Pending:
    """Pack a step's payload and submit its move.

    Args:
        lowered: what this rank does.
        tensors: its local tensors; not to be written to before `finish`; none of
            them on a rank that holds no part.
        wire: anything that carries moves.
        key: names the move; equal on all ranks of its group.
        priority: larger goes first, where the wire can.
        consume: the tensors' storage may be used for the result.
        record: where the bytes are written down.
        device: of the outputs, on a rank that holds no part; that of the tensors, or
            the CPU, unless said.

    Raises:
        ValueError: a tensor's shape or dtype is not the lowered one.
    """
    found = tuple(tensors)
    _check(lowered, found, key)
    where = device or next((t.device for t in found), None)
    where = where or torch.device("cpu")
    started = time.monotonic()
    future = None
    if lowered.move is not None:
        with torch.no_grad():
            payload, packed = pack(lowered, found, where)
        out = None
        if isinstance(lowered.move, AllReduce) and (packed or consume):
            out = payload
        future = wire.submit(lowered.move, payload, key=key, priority=priority, out=out)
    held = found if any(lowered.recipe.keeps) or future is None else ()
    return Pending(lowered, held, wire.rank, where, future, started, record)


def run(
    plan: BoxingPlan,
    tensors: Sequence[Tensor],
    wire: Carrier,
    *,
    key: str,
    priority: int = 0,
    record: Record | None = None,
    device: torch.device | None = None,
) -> Tensors:
    """Run all steps of a plan on this rank; see `start` for the arguments."""
    found = tuple(tensors)
    for i, lowered in enumerate(plan.lowered(wire.rank)):
        pending = start(
            lowered,
            found,
            wire,
            key=f"{key}.{i}" if i else key,
            priority=priority,
            record=record,
            device=device,
        )
        found = pending.finish()
    return found


def _check(lowered: Lowered, tensors: Tensors, key: str) -> None:
    shapes = lowered.src_shapes or ()
    given = [tuple(t.shape) for t in tensors]
    if given != list(shapes):
        wrong = [
            i for i, (a, b) in enumerate(zip(given, shapes, strict=False)) if a != b
        ]
        where = f"tensor {wrong[0]} is {given[wrong[0]]}" if wrong else "the number"
        needed = shapes[wrong[0]] if wrong else f"{len(shapes)}, not {len(given)}"
        raise ValueError(
            f"boxing {key!r}: {where}, this rank's part must be {needed}; "
            "give each tensor's local part"
        )
    dtypes = {t.dtype for t in tensors} - {lowered.dtype}
    if dtypes:
        raise ValueError(
            f"boxing {key!r} is planned for {lowered.dtype}, got {dtypes.pop()}; "
            "convert the tensors or plan again"
        )
