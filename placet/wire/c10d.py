"""A wire over torch.distributed: any c10d process group (gloo, NCCL) carries the moves.

    wire = C10dWire()                               # after init_process_group
    future = wire.submit(move, payload, key="grads.0")

The backend matches collectives by order, not by key, so all members of a group must
submit its moves in one order: `check_order=True` proves that they do, at the price of a
store look-up a move. On NCCL `wait` orders the current stream and does not block.

# NOTE [Groups]
A move's group that is not the whole job becomes a process group of its own when first
used, made by its members alone and kept until `close`. Making one blocks until all its
members come, so ranks that first use two groups in different orders would wait for each
other: `prepare` makes all groups at the start, sorted.
"""

import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from threading import Thread

import torch.distributed as dist
from torch import Tensor

from placet.boxing.moves import Move, describe
from placet.errors import MoveMismatch, WireError, WireTimeout
from placet.torch_private.c10d import (
    PrefixStore,
    default_store,
    group_of,
    set_bytes,
)
from placet.wire.c10d_failures import diagnose, mismatch_of_others, report_mismatch
from placet.wire.c10d_moves import Call, Started, most_header_bytes, start
from placet.wire.check import check_submission
from placet.wire.interface import Capabilities, Future, Traffic, Wire

_POLL_SECONDS = 0.002
_START_BYTES = 8192
"""c10d's own store traffic with one peer, at most; rank 0 keeps the store for all."""


class C10dWire(Wire):
    """Carries moves by the collectives of a process group.

    Args:
        process_group: the ranks of the job; the default group when left out.
        timeout_seconds: the deadline of the groups that the wire makes; the deadline
            of `process_group` itself was set when it was made.
        check_order: raise MoveMismatch where members submit in different orders.

    Raises:
        ValueError: torch.distributed is not initialised.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout_seconds: float = 300.0,
        check_order: bool = False,
    ) -> None:
        world = process_group or dist.group.WORLD
        if world is None:
            raise ValueError(
                "C10dWire() needs an initialised process group; call "
                "torch.distributed.init_process_group first"
            )
        self.rank = world.rank()
        self.num_ranks = world.size()
        self.capabilities = Capabilities(order_free=False, priorities=False)
        self.cluster = None
        self.timeout_seconds = timeout_seconds
        self.check_order = check_order
        self.store = PrefixStore("placet", default_store())
        self._groups = {tuple(range(self.num_ranks)): world}
        self._world_ranks = dist.get_process_group_ranks(world)
        self._in_flight: dict[int, _C10dFuture] = {}
        self._num_submitted: Counter[tuple[int, ...]] = Counter()
        self._num_exchanged: Counter[str] = Counter()
        self._broken: dict[tuple[int, ...], WireError] = {}
        peers = self.num_ranks - 1 if self.rank == 0 else min(1, self.num_ranks - 1)
        self._control_bytes = peers * _START_BYTES

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        for group in sorted(set(groups)):
            if self.rank in group and len(group) > 1:
                self._process_group(group)

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
        if move.group in self._broken:
            first = self._broken[move.group]
            raise type(first)(f"key {key!r}: this group failed before: {first.args[0]}")
        group = self._process_group(move.group)
        if self.check_order and len(move.group) > 1:
            self._check_order(move, key)
        out = None if out is None else out.detach()
        call = Call(move, payload.detach(), out, group, self.rank, key)
        submitted = time.monotonic()
        try:
            started = start(call)
        except RuntimeError as error:
            raise self.failure(call, str(error), submitted) from error
        if not payload.is_cuda:
            self._control_bytes += most_header_bytes(move)
        future = _C10dFuture(self, call, started, submitted)
        self._in_flight[id(future)] = future
        return future

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        self._num_exchanged[key] += 1
        name = f"exchange/{key}#{self._num_exchanged[key]}"
        names = [f"{name}/{rank}" for rank in range(self.num_ranks)]
        set_bytes(self.store, names[self.rank], value)
        try:
            self.store.wait(names, timedelta(seconds=self.timeout_seconds))
        except dist.DistStoreError as error:
            late = [str(r) for r, n in enumerate(names) if not self.store.check([n])]
            raise WireTimeout(
                f"exchange {key!r}: waited {self.timeout_seconds:g} s; "
                f"nothing from rank {', '.join(late)}"
            ) from error
        found = [bytes(self.store.get(n)) for n in names]
        self._control_bytes += len(value) + sum(map(len, found))
        if self.store.add(f"{name}/taken", 1) == self.num_ranks:
            for n in [*names, f"{name}/taken"]:
                self.store.delete_key(n)
        return found

    def control_bytes(self) -> int:
        return self._control_bytes

    def close(self) -> None:
        for future in list(self._in_flight.values()):
            future.wait()
        world = self._groups[tuple(range(self.num_ranks))]
        for group in self._groups.values():
            if group is not world:
                dist.destroy_process_group(group)
        self._groups = {tuple(range(self.num_ranks)): world}

    def forget(self, future: "_C10dFuture") -> None:
        """Note that a future is done."""
        self._in_flight.pop(id(future), None)

    def failure(self, call: Call, cause: str, submitted: float) -> WireError:
        """The error for a failed move; its group is broken from then on."""
        keys = [future.call.key for future in self._in_flight.values()]
        error = diagnose(
            cause,
            f"key {call.key!r} ({describe(call.move)})",
            key=call.key,
            group=call.move.group,
            rank=self.rank,
            submitted=(*keys, call.key),
            seconds=time.monotonic() - submitted,
            store=self.store,
        )
        self._broken[call.move.group] = error
        return error

    def _process_group(self, group: tuple[int, ...]) -> dist.ProcessGroup:
        """The process group of some ranks; see NOTE [Groups]."""
        found = self._groups.get(group)
        if found is None and len(group) == 1:
            return self._groups[tuple(range(self.num_ranks))]
        if found is None:
            ranks = [self._world_ranks[rank] for rank in group]
            name = f"placet/{'-'.join(map(str, ranks))}"
            try:
                found = group_of(ranks, name, timedelta(seconds=self.timeout_seconds))
            except RuntimeError as error:
                raise WireTimeout(
                    f"rank {self.rank} could not make group {group}: not all members "
                    f"came within {self.timeout_seconds:g} s ({error})"
                ) from error
            self._groups[group] = found
        return found

    def _check_order(self, move: Move, key: str) -> None:
        self._num_submitted[move.group] += 1
        turn = self._num_submitted[move.group]
        ranks = "-".join(map(str, move.group))
        mine = f"{key!r}: {move}"
        first = self.store.compare_set(f"order/{ranks}/{turn}", "", mine).decode()
        if first != mine:
            what = "different moves" if first.startswith(f"{key!r}: ") else "an order"
            raise report_mismatch(
                f"ranks disagree on {what}: submission {turn} of group {move.group} "
                f"is {first} on one rank and {mine} on rank {self.rank}",
                key=key,
                rank=self.rank,
                submitted=tuple(f.call.key for f in self._in_flight.values()),
                store=self.store,
            )


class _C10dFuture(Future):
    """A move under way on c10d."""

    def __init__(
        self, wire: C10dWire, call: Call, started: Started, submitted: float
    ) -> None:
        self.call = call
        self._wire = wire
        self._started = started
        self._submitted = submitted
        self._result: Tensor | None = None
        self._error: WireError | None = None
        self._waiter: Thread | None = None
        self._cause: RuntimeError | None = None

    def done(self) -> bool:
        if self._result is not None or self._error is not None:
            return True
        if self._started.can_poll:
            return all(work.is_completed() for work in self._started.works)
        # gloo's isend and irecv complete only while someone waits: let a thread.
        if self._waiter is None:
            self._waiter = Thread(target=self._wait_for_works, daemon=True)
            self._waiter.start()
        return not self._waiter.is_alive()

    def wait(self) -> Tensor:
        if self._result is None and self._error is None:
            self._settle()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def traffic(self) -> Traffic:
        if self._result is None:
            raise WireError(f"key {self.call.key!r}: no traffic to report before wait")
        return self._started.traffic

    def _settle(self) -> None:
        if self._wire.check_order:
            self._watch_for_mismatch()
        if self._error is None:
            if self._waiter is None:
                self._wait_for_works()
            else:
                self._waiter.join()
            if self._cause is None:
                self._result = self._started.finish()
            else:
                cause = str(self._cause)
                self._error = self._wire.failure(self.call, cause, self._submitted)
                self._error.__cause__ = self._cause
        self._wire.forget(self)

    def _wait_for_works(self) -> None:
        try:
            for work in self._started.works:
                work.wait()
        except RuntimeError as error:
            self._cause = error

    def _watch_for_mismatch(self) -> None:
        while not self.done():
            why = mismatch_of_others(self.call.move.group, self._wire.store)
            if why is not None:
                self._error = MoveMismatch(why)
                return
            time.sleep(_POLL_SECONDS)
