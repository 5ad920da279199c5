"""The attendant: a thread that hears what the core notices, and answers other ranks.

It also ends what nobody waits for: futures that were dropped, deadlines that passed. It
never blocks for another rank, so it answers while the program computes.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, Thread, current_thread
from typing import TypeAlias

from placet.errors import PeerLost, WireError
from placet.wire.daemons import GATE
from placet.wire.engine.core import Event, EventKind, State
from placet.wire.engine.deadlines import CAUSE_SECONDS, Asker, Waiting, no_cause
from placet.wire.engine.futures import Callback, EngineFuture
from placet.wire.engine.inflight import LEFT, InFlight
from placet.wire.engine.keys import scope_of
from placet.wire.engine.membership import AGAIN, Membership
from placet.wire.engine.messages import (
    ADVANCED,
    ASK_REPORT,
    FAILED,
    OWN_TOPICS,
    PROPOSE,
    REPORT,
    unpack_failure,
    unpack_message,
    unpack_submitted,
)
from placet.wire.engine.mismatches import Mismatches
from placet.wire.engine.reporting import write_record

_NONSENSE = (ValueError, TypeError, OverflowError, RecursionError)
"""What reading a message raises that is none of ours; JSON may nest without end."""

Listener: TypeAlias = Callable[[int, bytes], None]

SWEEP_SECONDS = 0.05
"""How often it looks at what nobody waits for."""

GRACE_SECONDS = 0.3
"""A member that has left or failed may have done its part of a move already."""

UNHEARD = 256
"""So many messages on topics that nobody listens to yet are kept."""


@dataclass(frozen=True)
class _Doubt:
    """A rank submits nothing more: fail what it has not submitted by then.

    Only its partners in a move know whether it has; they tell the other members.
    """

    until: float
    epoch: int
    rank: int
    scope: bytes | None
    kind: type[WireError]
    cause: str


class Attendant:
    """Handles the core's events, in one thread.

    Args:
        inflight: the table of moves.
        waiting: explains deadlines.
        asker: trades reports.
        membership: re-forms the group.
        watch: called ten times a second; ends links whose host is silent.
    """

    def __init__(
        self,
        inflight: InFlight,
        waiting: Waiting,
        asker: Asker,
        membership: Membership,
        watch: Callable[[], object],
    ) -> None:
        self._watch = watch
        self._inflight = inflight
        self._waiting = waiting
        self._asker = asker
        self._membership = membership
        self._mismatches = Mismatches(inflight, self._expect_none_in)
        self._listeners: dict[str, Listener] = {}
        self._unheard: deque[tuple[str, int, bytes]] = deque(maxlen=UNHEARD)
        self._listening = Lock()
        self._doubts: list[_Doubt] = []
        self._swept = 0.0
        self._failed_since: dict[int, float] = {}
        self._stopped = False
        self._thread = Thread(target=self._run, name="placet-attendant", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, once it has called back all that has ended."""
        self._stopped = True

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join(CAUSE_SECONDS)

    def listen(self, topic: str, listener: Listener) -> None:
        """Call `listener` for each message on a topic, those kept so far at once."""
        with self._listening:
            self._listeners[topic] = listener
            kept = [m for m in self._unheard if m[0] == topic]
            for message in kept:
                self._unheard.remove(message)
        for _, rank, data in kept:
            listener(rank, data)

    def _run(self) -> None:
        seconds = SWEEP_SECONDS
        while not self._stopped:
            try:
                event = self._inflight.core.next_event(seconds)
                with GATE:
                    if event is not None and not self._stopped:
                        self._handle(event)
                    seconds = min(SWEEP_SECONDS, self._look_after())
            except Exception as error:
                # A thread that dies in silence would let everyone wait.
                if not self._stopped:
                    self._give_up(error)

    def _handle(self, event: Event) -> None:
        match event.kind:
            case EventKind.MESSAGE:
                self._hear(event.peer, event.data)
            case EventKind.LOST:
                self._lose(event.peer, event.data.decode(errors="replace"))
            case EventKind.MISMATCH:
                future = self._future(event.handle)
                # The task may be long gone, and another have its handle by now.
                if future is not None and self._has_failed(future):
                    cause = event.data.decode(errors="replace")
                    self._mismatches.noticed(future, cause)
            case EventKind.FINISHED:
                future = self._future(event.handle)
                if future is not None:
                    self._note_end(future)
            case EventKind.LEFT:
                self._membership.on_lost(event.peer)
                self._leave(event.peer)

    def _hear(self, peer: int, message: bytes) -> None:
        try:
            topic, data = unpack_message(message)
            if topic in OWN_TOPICS:
                self._hear_own(topic, peer, data)
        except _NONSENSE as error:
            self._lose(peer, f"it sent a message that is none of ours: {error}")
            return
        if topic not in OWN_TOPICS and peer in self._inflight.peers:
            self._pass_on(topic, self._inflight.peers.index(peer), data)

    def _hear_own(self, topic: str, peer: int, data: bytes) -> None:
        if topic == PROPOSE:
            epoch = self._membership.on_proposal(peer, data)
            if epoch is not None and epoch == self._inflight.epoch:
                self._step_aside(epoch, self._inflight.peers.index(peer))
        elif topic == ADVANCED:
            self._membership.on_advanced(peer, data)
        elif peer in self._inflight.peers:
            rank = self._inflight.peers.index(peer)
            if topic == ASK_REPORT:
                self._asker.on_question(rank, data)
            elif topic == REPORT:
                self._asker.on_answer(rank, data)
            elif topic == FAILED:
                self._fail(rank, data)
            else:
                self._mismatches.told(rank, unpack_submitted(data))

    def _pass_on(self, topic: str, rank: int, data: bytes) -> None:
        with self._listening:
            listener = self._listeners.get(topic)
            if listener is None:
                self._unheard.append((topic, rank, data))
                return
        listener(rank, data)

    def _fail(self, rank: int, data: bytes) -> None:
        """Another member says that a collective has failed."""
        failure, inflight = unpack_failure(data), self._inflight
        if failure.epoch != inflight.epoch or inflight.rank not in failure.group:
            return
        error = failure.error()
        scope = scope_of(failure.group, control=failure.control)
        inflight.break_group(failure.epoch, scope, error)
        future = inflight.find(failure.collective)
        if future is not None:
            if future.waiters:
                self._asker.remember()
            inflight.fail(future, error)
        elif inflight.submitted(failure.collective) is None:
            inflight.fail_early(failure.epoch, failure.collective, error)
        self._expect_none_in(rank, scope, error)
        write_record(inflight)

    def _lose(self, peer: int, cause: str) -> None:
        self._membership.on_lost(peer)
        inflight = self._inflight
        if peer not in inflight.peers:
            return
        for future in inflight.lose(inflight.peers.index(peer), cause):
            assert future.error is not None
            # Others may not have lost it: a link can be cut between two ranks only.
            inflight.tell_members(future, future.error)
        write_record(inflight)

    def _leave(self, peer: int) -> None:
        inflight, epoch = self._inflight, self._inflight.epoch
        if peer in inflight.peers:
            rank = inflight.peers.index(peer)
            inflight.doubt(rank, LEFT)
            cause = _absent(rank, LEFT) + inflight.last_with(rank)
            self._expect_nothing(epoch, rank, None, PeerLost, cause)

    def _step_aside(self, epoch: int, rank: int) -> None:
        """Another rank re-forms: what waits for it fails, so that we may, too."""
        lost = ", ".join(f"rank {r}: {c}" for r, c in self._inflight.lost.items())
        cause = _absent(rank, AGAIN) + (f" (lost: {lost})" if lost else "")
        self._expect_nothing(epoch, rank, None, PeerLost, cause, grace_seconds=0.0)

    def _expect_none_in(self, rank: int, scope: bytes, error: WireError) -> None:
        """A member of a broken group refuses what its program submits there."""
        cause = f"this group failed before: {error.args[0]}"
        self._expect_nothing(self._inflight.epoch, rank, scope, type(error), cause)

    def _expect_nothing(
        self,
        epoch: int,
        rank: int,
        scope: bytes | None,
        kind: type[WireError],
        cause: str,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """A rank submits nothing more in an epoch, in a scope or at all."""
        until = time.monotonic() + grace_seconds
        self._doubts.append(_Doubt(until, epoch, rank, scope, kind, cause))

    def _look_after(self) -> float:
        """Do what is due; seconds until more will be."""
        now = time.monotonic()
        if now >= self._swept + SWEEP_SECONDS:
            self._swept = now
            self._watch()
            self._sweep(now)
        self._settle_doubts(now)
        until_ripe = self._mismatches.raise_ripe()
        self._call_back()
        return max(0.0, until_ripe)

    def _settle_doubts(self, now: float) -> None:
        inflight = self._inflight
        for doubt in [d for d in self._doubts if d.until <= now]:
            self._doubts.remove(doubt)
            if doubt.epoch != inflight.epoch:
                continue
            peer = inflight.peers[doubt.rank]
            for future in inflight.alive():
                prepared = future.prepared
                if doubt.scope not in (None, prepared.scope):
                    continue
                if peer in prepared.partners and not self._heard(future, peer):
                    error = doubt.kind(f"{future.what}: {doubt.cause}")
                    if inflight.fail(future, error):
                        inflight.tell_members(future, error)

    def _heard(self, future: EngineFuture, peer: int) -> bool:
        with self._inflight.lock:
            if future.ended:
                return True
            return peer in self._inflight.core.heard(future.handle)

    def _sweep(self, now: float) -> None:
        """End what nobody waits for."""
        inflight, late = self._inflight, []
        for future in inflight.alive():
            with inflight.lock:
                if future.ended or future.waiters or future.error is not None:
                    continue
                state = inflight.core.state(future.handle)
            if state is State.DONE:
                inflight.succeed(future)
            elif state is State.FAILED:
                since = self._failed_since.setdefault(future.handle, now)
                if now - since > CAUSE_SECONDS:
                    inflight.fail(future, no_cause(future))
            elif now > future.deadline and not future.expiring:
                late.append(future)
        if late:
            # Asking others takes a while, and this thread must hear the answers.
            Thread(target=self._expire, args=(late,), daemon=True).start()
        known = inflight.futures
        self._failed_since = {
            h: since for h, since in self._failed_since.items() if h in known
        }

    def _expire(self, late: list[EngineFuture]) -> None:
        with GATE:
            self._waiting.expire(late)

    def _future(self, handle: int) -> EngineFuture | None:
        with self._inflight.lock:
            return self._inflight.futures.get(handle)

    def _has_failed(self, future: EngineFuture) -> bool:
        with self._inflight.lock:
            if future.ended:
                return future.error is not None
            return self._inflight.core.state(future.handle) is State.FAILED

    def _note_end(self, future: EngineFuture) -> None:
        with self._inflight.lock:
            if future.ended:
                return
            state = self._inflight.core.state(future.handle)
        if state is State.DONE:
            self._inflight.succeed(future)

    def _call_back(self) -> None:
        inflight = self._inflight
        while inflight.ended_with_notice:
            future = inflight.ended_with_notice.popleft()
            with inflight.lock:
                callbacks, future.callbacks = future.callbacks, []
                future.notify = False
                inflight.let_go(future)
            for callback in callbacks:
                _call(callback, future)

    def _give_up(self, error: Exception) -> None:
        inflight = self._inflight
        why = f"the wire's attendant failed: {error!r}"
        inflight.record.note("broken", text=why)
        inflight.refuse(why)
        for future in inflight.alive():
            inflight.fail(future, WireError(f"{future.what}: {why}"))
        write_record(inflight)


def _call(callback: Callback, future: EngineFuture) -> None:
    """Call back; an error is told as one of a thread, and ends nothing else."""
    try:
        callback(future)
    except Exception:
        kind, error, frames = sys.exc_info()
        told = (kind, error, frames, current_thread())
        threading.excepthook(threading.ExceptHookArgs(told))


def _absent(rank: int, cause: str) -> str:
    return f"rank {rank} takes no part: {cause}"
