"""The twin: a wire between the threads of one process, each thread one rank.

It moves real bytes, counts them, and fails as a real wire fails, so most of placet is
tested without starting a process:

    twin = Twin(2)
    a = twin.wire(0).submit(move, x, key="k")       # in one thread
    b = twin.wire(1).submit(move, y, key="k")       # in another: now both are done

Moves meet by key: a rank joins the oldest open move under its key that has the rank in
its group. The member that joins last does the work, in its own thread.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Condition

from torch import Tensor

from placet.boxing.moves import Move, describe
from placet.errors import MoveMismatch, PeerLost, WireError, WireTimeout
from placet.wire.check import check_submission
from placet.wire.interface import Capabilities, Future, Traffic, Wire
from placet.wire.twin_moves import carry


@dataclass
class _Open:
    """A move (or an exchange of bytes) that some members may not have joined yet."""

    key: str
    group: tuple[int, ...]
    move: Move | None
    payloads: dict[int, Tensor | bytes] = field(default_factory=dict)
    outs: dict[int, Tensor | None] = field(default_factory=dict)
    results: dict[int, Tensor] = field(default_factory=dict)
    traffic: dict[int, Traffic] = field(default_factory=dict)
    error: tuple[type[WireError], str] | None = None
    done: bool = False

    def __str__(self) -> str:
        what = "exchange of bytes" if self.move is None else describe(self.move)
        return f"key {self.key!r} ({what})"

    def missing(self) -> list[int]:
        return [r for r in self.group if r not in self.payloads]


class Twin:
    """All ranks of a job in one process.

    Args:
        num_ranks: how many.
        timeout_seconds: how long `wait` and `exchange` wait before they raise.
    """

    def __init__(self, num_ranks: int, *, timeout_seconds: float = 30.0) -> None:
        if num_ranks < 1:
            raise ValueError(f"Twin({num_ranks}): a job has at least 1 rank")
        self.num_ranks = num_ranks
        self.timeout_seconds = timeout_seconds
        self._changed = Condition()
        self._open: dict[str, list[_Open]] = {}
        self._lost: dict[int, str] = {}
        self._last_key: dict[int, str] = {}
        self._waiting_on: dict[int, str] = {}

    def wire(self, rank: int) -> Wire:
        """The wire of one rank.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank {rank} is not one of the twin's {self.num_ranks}")
        return _TwinWire(self, rank)

    def lose(self, rank: int, reason: str) -> None:
        """Mark a rank as gone: whoever waits for it gets PeerLost.

        Args:
            rank: the rank that will not submit anything any more.
            reason: why, as in "raised ValueError"; goes into the message.
        """
        with self._changed:
            self._lost.setdefault(rank, reason)
            for move in [m for moves in self._open.values() for m in moves]:
                self._fail_if_lost(move)

    def join(
        self,
        rank: int,
        key: str,
        group: tuple[int, ...],
        move: Move | None,
        payload: Tensor | bytes,
        out: Tensor | None = None,
    ) -> _Open:
        """Add a rank's payload to the open move under `key`; the last one runs it."""
        with self._changed:
            self._last_key[rank] = key
            joined = self._find(rank, key)
            if joined is None:
                joined = _Open(key, group, move)
                self._open.setdefault(key, []).append(joined)
            if (joined.group, joined.move) != (group, move):
                self._fail(joined, MoveMismatch, _difference(joined, rank, move))
            joined.payloads[rank] = payload
            joined.outs[rank] = out
            self._fail_if_lost(joined)
            if joined.missing():
                return joined
            self._forget(joined)
            if joined.error is not None:
                return joined
        try:
            self._run(joined)
        except Exception as error:
            with self._changed:
                self._fail(joined, WireError, f"{joined}: {error}")
            raise
        with self._changed:
            joined.done = True
            self._changed.notify_all()
        return joined

    def finish(self, rank: int, joined: _Open, timeout_seconds: float) -> None:
        """Block until a joined move is done.

        Raises:
            WireError: it failed, or the deadline passed.
        """
        with self._changed:
            self._waiting_on[rank] = joined.key
            started = time.monotonic()
            if not self._changed.wait_for(lambda: joined.done, timeout_seconds):
                waited = time.monotonic() - started
                self._fail(joined, WireTimeout, self._who_is_late(joined, waited))
            self._waiting_on.pop(rank, None)
            if joined.error is not None:
                kind, message = joined.error
                raise kind(message)

    def _find(self, rank: int, key: str) -> _Open | None:
        for candidate in self._open.get(key, ()):
            if rank in candidate.group and rank not in candidate.payloads:
                return candidate
        return None

    def _run(self, joined: _Open) -> None:
        if joined.move is None:
            return
        payloads = [joined.payloads[rank] for rank in joined.group]
        tensors = [p for p in payloads if isinstance(p, Tensor)]
        results, traffic = carry(joined.move, tensors)
        for rank, result, bytes_ in zip(joined.group, results, traffic, strict=True):
            out = joined.outs[rank]
            joined.results[rank] = result if out is None else out.detach().copy_(result)
            joined.traffic[rank] = bytes_
        joined.payloads = dict.fromkeys(joined.group, b"")
        joined.outs = {}

    def _fail(self, joined: _Open, kind: type[WireError], message: str) -> None:
        if joined.done:
            return
        joined.error = (kind, message)
        joined.done = True
        # It stays open until all have joined it: the others must fail too.
        self._changed.notify_all()

    def _fail_if_lost(self, joined: _Open) -> None:
        gone = [rank for rank in joined.missing() if rank in self._lost]
        if gone:
            reasons = ", ".join(f"rank {r} {self._lost[r]}" for r in gone)
            self._fail(joined, PeerLost, f"{joined}: {reasons}")

    def _forget(self, joined: _Open) -> None:
        moves = self._open[joined.key]
        moves.remove(joined)
        if not moves:
            del self._open[joined.key]

    def _who_is_late(self, joined: _Open, waited: float) -> str:
        late = "; ".join(self._doing(rank) for rank in joined.missing())
        there = _ranks(list(joined.payloads))
        return f"{joined}: waited {waited:.3g} s; submitted by {there}; not by {late}"

    def _doing(self, rank: int) -> str:
        last = self._last_key.get(rank)
        waiting = self._waiting_on.get(rank)
        submitted = "nothing so far" if last is None else f"{last!r} last"
        doing = "is computing" if waiting is None else f"waits on {waiting!r}"
        return f"rank {rank}, which submitted {submitted} and {doing}"


class _TwinWire(Wire):
    """One rank's end of a twin."""

    def __init__(self, twin: Twin, rank: int) -> None:
        self.rank = rank
        self.num_ranks = twin.num_ranks
        self.capabilities = Capabilities(order_free=True, priorities=False)
        self.cluster = None
        self.timeout_seconds = twin.timeout_seconds
        self._twin = twin
        self._control_bytes = 0

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> Future:
        check_submission(
            move,
            payload,
            out,
            key=key,
            rank=self.rank,
            num_ranks=self.num_ranks,
        )
        joined = self._twin.join(self.rank, key, move.group, move, payload, out)
        return _TwinFuture(self, self._twin, joined)

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Nothing: members meet by key, whatever their group."""

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        everyone = tuple(range(self.num_ranks))
        joined = self._twin.join(self.rank, key, everyone, None, value)
        self._twin.finish(self.rank, joined, self.timeout_seconds)
        values = [joined.payloads[rank] for rank in everyone]
        found = [v for v in values if isinstance(v, bytes)]
        self._control_bytes += len(value) * (self.num_ranks - 1)
        self._control_bytes += sum(map(len, found)) - len(value)
        return found

    def control_bytes(self) -> int:
        return self._control_bytes

    def close(self) -> None:
        self._twin.lose(self.rank, "closed its wire")


class _TwinFuture(Future):
    """A joined move."""

    def __init__(self, wire: _TwinWire, twin: Twin, joined: _Open) -> None:
        self._wire = wire
        self._twin = twin
        self._rank = wire.rank
        self._joined = joined

    def done(self) -> bool:
        return self._joined.done

    def wait(self) -> Tensor:
        self._twin.finish(self._rank, self._joined, self._wire.timeout_seconds)
        return self._joined.results[self._rank]

    def traffic(self) -> Traffic:
        if self._rank not in self._joined.traffic:
            raise WireError(f"{self._joined}: no traffic to report before it is done")
        return self._joined.traffic[self._rank]


def single() -> Wire:
    """The wire of a job that runs alone: one rank, nothing to move."""
    return Twin(1).wire(0)


def _difference(joined: _Open, rank: int, move: Move | None) -> str:
    there = _ranks(list(joined.payloads))
    return f"{joined}: {there} submitted {joined.move}, rank {rank} {move}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
