"""The moves in flight on this rank, and what has gone wrong: one table, one lock.

A waiting thread, the attendant and a thread that re-forms the group all end moves, so
every change of a future's state is made here. A future's end is final: whatever comes
later does not change it.

# NOTE [Broken groups]
A collective that failed on some members may be under way or done on others, so counts
of keys may differ from then on. A group with a failed collective is broken: members
refuse what is submitted on it, with the first error, until the wire is re-formed. Each
refusal is told to the other members, whose own submission would wait in vain.
"""

import os
import time
import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from threading import Condition, RLock

from torch import Tensor

from placet.errors import MoveMismatch, PeerLost, WireError
from placet.wire.engine.buffer_watch import watch
from placet.wire.engine.core import Core, State, Task
from placet.wire.engine.flight import FlightRecord, Noted
from placet.wire.engine.futures import EngineFuture, Keeper, raisable
from placet.wire.engine.keys import KeyTable, full_text
from placet.wire.engine.messages import (
    FAILED,
    TEXT_BYTES,
    Failure,
    pack_message,
    pack_value,
)
from placet.wire.engine.prepared import Prepared

KEPT_FINISHED = 32
KEPT_EARLY = 1024
KEPT_TOLD = 3

LEFT = "it closed its wire"
"""Why a rank is doubted that said good-bye."""

FORKED = (
    "this process was forked from one that had started its wire; only the parent may "
    "use it: fork (or spawn, for data loaders) before the wire is started"
)


class InFlight:
    """All submitted moves that have not ended, by handle.

    Args:
        core: moves the bytes.
        me: this rank's number as a peer.
        peers: the core's number of each rank.
        debug: whether buffers are watched.
        report_folder: where the flight record is written on failure.
        can_reform: whether the program can call `reform`; errors then name it.
    """

    def __init__(
        self,
        core: Core,
        me: int,
        peers: tuple[int, ...],
        *,
        debug: bool = False,
        report_folder: Path | None = None,
        can_reform: bool = True,
    ) -> None:
        self.core = core
        self.me = me
        self.peers = peers
        self.debug = debug
        self.report_folder = report_folder
        self.can_reform = can_reform
        self.epoch = 0
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self.futures: dict[int, EngineFuture] = {}
        self.ended_with_notice: deque[EngineFuture] = deque()
        self.finished: deque[tuple[int, str, Prepared]] = deque(maxlen=KEPT_FINISHED)
        self.finished_at = 0.0
        self.record = FlightRecord()
        self.trouble = False
        self.refusal = ""
        self.raised = False
        self.lost: dict[int, str] = {}
        self.doubted: dict[int, str] = {}
        self._broken: dict[bytes, WireError] = {}
        self._early: dict[int, WireError] = {}
        self._keys = KeyTable()
        _ALIVE.add(self)

    @property
    def rank(self) -> int:
        """This rank's number now."""
        return self.peers.index(self.me)

    def refuse(self, why: str) -> None:
        """Refuse all that is submitted from now on; "" allows it again."""
        with self.lock:
            self.refusal = why
            self.trouble = bool(
                why or self.lost or self.doubted or self._broken or self._early
            )

    def allow(self, why: str) -> None:
        """Refuse no more what `refuse(why)` began to refuse."""
        with self.lock:
            if self.refusal == why:
                self.refuse("")

    def check_usable(self, what: str) -> None:
        """Raise if the wire takes no moves."""
        if self.refusal:
            raise WireError(f"{what}: {self.refusal}")

    def start(
        self,
        keeper: Keeper,
        prepared: Prepared,
        payload: Tensor,
        out: Tensor,
        *,
        key: str,
        priority: int,
        notify: bool,
        timeout_seconds: float,
    ) -> EngineFuture:
        """Hand a move to the core.

        Raises:
            WireError: the group is broken, or a member is gone.
        """
        watched = watch(payload, out) if self.debug else None
        move = prepared.move
        # Under the lock: whoever notes a failure sees this move, or this sees it.
        with self.lock:
            collective = self._keys.next_number(prepared.scope, key)
            if self.trouble:
                self._check_group(prepared, key, collective)
            handle = self.core.submit(
                Task(
                    collective,
                    prepared.fingerprint,
                    prepared.schedule,
                    payload if watched is None else watched.given,
                    out if watched is None else watched.taken,
                    priority,
                    notify,
                )
            )
            now = time.monotonic()
            future = EngineFuture(
                keeper,
                handle,
                collective,
                key,
                prepared,
                payload,
                out,
                now,
                now + timeout_seconds,
                notify,
                watched,
                self.epoch,
            )
            self.futures[handle] = future
        self.record.note(Noted.SUBMIT, key, group=move.group, move=prepared.text)
        return future

    def pass_by(self, prepared: Prepared, key: str) -> None:
        """Count a key's use in a move in which this rank has nothing to do.

        The other members count it, too, and the key's next use must get one number.
        """
        with self.lock:
            self._keys.next_number(prepared.scope, key)

    def succeed(self, future: EngineFuture) -> None:
        """End a future whose task is done, unless another thread has failed it."""
        problem = future.watch.problem() if future.watch is not None else ""
        with self.lock:
            if future.ended or future.error is not None:
                return
            if problem:
                future.error = WireError(f"{future.what}: {problem}")
            elif future.watch is not None:
                future.watch.bring()
            self.finished.append((future.collective, future.key, future.prepared))
            self.finished_at = time.monotonic()
            self._end(future)
        self.record.note(Noted.DONE, future.key, group=future.group)

    def fail(self, future: EngineFuture, error: WireError) -> bool:
        """End a future that is not done; whether it was this call that did."""
        with self.lock:
            if future.ended or future.error is not None:
                return False
            if self.core.state(future.handle) is State.DONE:
                return False
            future.error = error
        # Only once this has returned may the caller touch the buffers.
        self.core.fail(future.handle)
        with self.lock:
            self._end(future)
        self.note_failure(future, error)
        return True

    def note_failure(self, future: EngineFuture, error: WireError) -> None:
        """Put a failed move into the flight record."""
        kind, text = type(error).__name__, str(error.args[0])
        self.record.note(
            Noted.FAILED, future.key, group=future.group, error=kind, text=text
        )

    def enter(self, future: EngineFuture) -> bool:
        """Count a waiting thread; false if there is nothing to wait for."""
        now = time.monotonic()
        with self.lock:
            if future.ended:
                return False
            future.waiters += 1
            if future.waiters == 1:
                future.waiting_since = now
        return True

    def leave(self, future: EngineFuture) -> None:
        """The thread waits no more."""
        with self.lock:
            future.waiters -= 1
            if future.ended and not future.waiters:
                self.let_go(future)

    def let_go(self, future: EngineFuture) -> None:
        """Forget an ended future, unless someone still needs its handle."""
        with self.lock:
            unneeded = not future.waiters and not future.notify
            if unneeded and self.futures.pop(future.handle, None) is not None:
                self.core.release(future.handle)

    def alive(self) -> list[EngineFuture]:
        """All futures that have not ended."""
        with self.lock:
            return [f for f in self.futures.values() if not f.ended]

    def find(self, collective: int) -> EngineFuture | None:
        """The future in flight with a number on the wire."""
        found = (f for f in self.alive() if f.collective == collective)
        return next(found, None)

    def submitted(self, collective: int) -> tuple[str, Prepared] | None:
        """Key and move of a collective that is in flight, or was of late."""
        future = self.find(collective)
        if future is not None:
            return future.key, future.prepared
        found = (done[1:] for done in self.finished if done[0] == collective)
        return next(found, None)

    def break_group(self, epoch: int, scope: bytes, error: WireError) -> None:
        """Note a failure in an epoch; see NOTE [Broken groups]."""
        with self.lock:
            if epoch == self.epoch:
                self._broken.setdefault(scope, error)
                self.trouble = True

    def fail_early(self, epoch: int, collective: int, error: WireError) -> None:
        """Remember that a collective has failed that this rank may yet submit."""
        with self.lock:
            if epoch != self.epoch:
                return
            while len(self._early) >= KEPT_EARLY:
                del self._early[next(iter(self._early))]
            self._early.setdefault(collective, error)
            self.trouble = True

    def lose(self, rank: int, cause: str) -> list[EngineFuture]:
        """Note that a rank is gone, and fail what needs it; what was failed."""
        with self.lock:
            self.lost.setdefault(rank, cause)
            self.trouble = True
            hit = [future for future in self.alive() if rank in future.group]
        self.record.note(Noted.LOST, rank=rank, text=cause)
        return [f for f in hit if self.fail(f, PeerLost(self._gone(f.what, rank)))]

    def doubt(self, rank: int, cause: str) -> None:
        """Note that a rank submits nothing more; what is in flight may still end."""
        with self.lock:
            self.doubted.setdefault(rank, cause)
            self.trouble = True

    def tell_members(self, future: EngineFuture, error: WireError) -> None:
        """Let the other members of a failed move fail it, too."""
        with self.lock:
            if future.epoch == self.epoch:
                number = future.collective
                self._tell_failure(future.prepared, future.key, number, error)

    def send(self, rank: int, message: bytes) -> None:
        """Send a message to a rank, unless it is gone or this one."""
        if rank not in self.lost and self.peers[rank] != self.me:
            self.core.send(self.peers[rank], message)

    def send_all(self, ranks: Iterable[int], topic: str, data: bytes = b"") -> None:
        """Send a message to several ranks."""
        message = pack_message(topic, data)
        for rank in ranks:
            if rank < len(self.peers):
                self.send(rank, message)

    def renew(self, epoch: int, peers: tuple[int, ...]) -> None:
        """Begin a new epoch: all in flight fails, all that was broken is whole.

        Args:
            epoch: the new one.
            peers: who is left, by rank.
        """
        with self.lock:
            gone = {self.peers[rank]: cause for rank, cause in self.lost.items()}
            self.core.advance(epoch, frozenset(self.peers) - frozenset(peers))
            for future in self.alive():
                if future.error is None:
                    text = f"{future.what}: the ranks were re-formed meanwhile"
                    future.error = WireError(text)
                self._end(future)
            self.epoch, self.peers = epoch, peers
            self._broken.clear()
            self._early.clear()
            self.doubted.clear()
            self._keys.clear()
            self.finished.clear()
            # One that died after the others had agreed is lost in the new epoch, too.
            self.lost = {r: gone[p] for r, p in enumerate(peers) if p in gone}
            self.raised = False
            self.trouble = bool(self.lost or self.refusal)

    def _end(self, future: EngineFuture) -> None:
        future.ended = True
        future.payload = future.watch = None
        if future.notify or future.callbacks:
            self.ended_with_notice.append(future)
        if not future.waiters:
            self.let_go(future)
        if future.waiters > 1 or future.error is not None:
            self.changed.notify_all()

    def _check_group(self, prepared: Prepared, key: str, collective: int) -> None:
        self.check_usable(prepared.what(key))
        early = self._early.pop(collective, None)
        first = self._broken.get(prepared.scope)
        # What a rank sent before it left in good order may be here: the core knows.
        gone = [
            r
            for r in prepared.move.group
            if r in self.lost or self.doubted.get(r, LEFT) != LEFT
        ]
        if early is not None and isinstance(early, MoveMismatch):
            others, full = str(early.args[0]), full_text(prepared.move)
            mine = full if prepared.text in others else prepared.text
            text = f"{others}; rank {self.rank} submitted {mine}"
            error: WireError = MoveMismatch(text)
        elif early is not None:
            error = raisable(early)
        elif first is not None:
            text = f"{prepared.what(key)}: this group failed before: {first.args[0]}"
            error = type(first)(text)
        elif gone:
            error = PeerLost(self._gone(prepared.what(key), gone[0]))
        else:
            return
        if early is None:
            self._tell_failure(prepared, key, collective, error)
        self.raised = True
        raise error

    def _tell_failure(
        self, prepared: Prepared, key: str, collective: int, error: WireError
    ) -> None:
        group = prepared.move.group
        failure = Failure(
            self.epoch,
            collective,
            key,
            group,
            prepared.control,
            type(error).__name__,
            str(error.args[0])[:TEXT_BYTES],
        )
        self.send_all(group, FAILED, pack_value(failure))

    def absence(self, future: EngineFuture) -> WireError | None:
        """The error for a task that needs a rank which is gone; None if none is."""
        with self.lock:
            for rank in future.group:
                if rank in self.lost or self.doubted.get(rank, LEFT) != LEFT:
                    return PeerLost(self._gone(future.what, rank))
                if rank in self.doubted:
                    return PeerLost(
                        self._gone(future.what, rank) + self.last_with(rank)
                    )
        return None

    def _gone(self, what: str, rank: int) -> str:
        cause = self.lost.get(rank) or self.doubted[rank]
        if rank not in self.lost:
            return f"{what}: rank {rank} takes no part: {cause}"
        then = "; the others can go on after reform()" if self.can_reform else ""
        return f"{what}: rank {rank} is gone: {cause}{then}"

    def last_with(self, rank: int) -> str:
        """What this rank knows of one that closed its wire before a move was done."""
        with self.lock:
            done = list(self.finished)
        theirs = [key for _, key, prepared in done if rank in prepared.move.group]
        last = ", ".join(repr(key) for key in theirs[-KEPT_TOLD:]) or "none"
        return f" without doing its part; the last moves done with it: {last}"


_ALIVE: "weakref.WeakSet[InFlight]" = weakref.WeakSet()


def _after_fork() -> None:
    # Locks may be held by threads that the child does not have: only set flags.
    for inflight in _ALIVE:
        inflight.refusal = FORKED
        inflight.trouble = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
