"""Waiting, and what happens when a deadline passes: ask everyone, explain, tell.

1. ask all ranks what they do            -> Asker.ask; their attendants answer
2. find the likely cause                 -> diagnose.explain
3. fail the move here                    -> InFlight.fail
4. tell its members, who raise the same  -> InFlight.tell_members
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Event, Lock

from placet.errors import WireError
from placet.wire.engine.core import State
from placet.wire.engine.diagnose import Report, explain
from placet.wire.engine.flight import Noted
from placet.wire.engine.futures import Callback, EngineFuture, Keeper
from placet.wire.engine.inflight import InFlight
from placet.wire.engine.keys import full_text
from placet.wire.engine.messages import ASK_REPORT, REPORT, pack_message
from placet.wire.engine.reporting import report_of, write_record

ANSWER_SECONDS = 0.5
"""A rank that has not answered after so long is paused, dead or cut off."""

BRIEF_SECONDS = 0.01
"""A wait that is no longer is not put into the flight record."""

KEPT_SECONDS = 1.0
"""Ranks whose deadlines pass together ask one another at about the same time."""

CAUSE_SECONDS = 2.0
"""The core says that a task failed before the event that says why has been read; that
and the talk about a mismatch take less."""


@dataclass
class _Question:
    missing: set[int]
    found: dict[int, Report] = field(default_factory=dict)
    complete: Event = field(default_factory=Event)


class Asker:
    """Asks all ranks what they do.

    Args:
        inflight: where this rank's own answer comes from.
    """

    def __init__(self, inflight: InFlight) -> None:
        self._inflight = inflight
        self._numbers = count()
        self._questions: dict[int, _Question] = {}
        self._lock = Lock()
        self._kept: tuple[float, int, Report] | None = None

    def ask(self, seconds: float) -> Mapping[int, Report | None]:
        """What each rank says; None where it did not answer in so many seconds."""
        inflight = self._inflight
        me, everyone = inflight.rank, range(len(inflight.peers))
        others = {r for r in everyone if r != me and r not in inflight.lost}
        question, number = _Question(set(others)), next(self._numbers)
        with self._lock:
            self._questions[number] = question
        inflight.send_all(sorted(others), ASK_REPORT, b"%d" % number)
        if others:
            question.complete.wait(seconds)
        with self._lock:
            del self._questions[number]
        found = {**question.found, me: report_of(inflight)}
        return {rank: found.get(rank) for rank in everyone}

    def remember(self) -> None:
        """Keep what this rank waits for: a wait that fails now.

        Another rank, whose deadline passes a moment later, asks when this one waits no
        more; without the answer it would not see that they waited for each other.
        """
        report = report_of(self._inflight)
        if report.waiting is not None:
            self._kept = (time.monotonic(), self._inflight.epoch, report)

    def on_question(self, rank: int, data: bytes) -> None:
        """Answer another rank: what this one does, or did when its wait failed."""
        report, kept = report_of(self._inflight), self._kept
        if kept is not None and report.waiting is None:
            since, epoch, then = kept
            is_fresh = time.monotonic() - since < KEPT_SECONDS
            report = then if is_fresh and epoch == self._inflight.epoch else report
        answer = data + b"\n" + report.to_json()
        self._inflight.send(rank, pack_message(REPORT, answer))

    def on_answer(self, rank: int, data: bytes) -> None:
        """Take another rank's answer; a late one is dropped.

        Raises:
            ValueError: it is none.
        """
        number, _, report = data.partition(b"\n")
        with self._lock:
            question = self._questions.get(int(number))
            if question is not None and rank in question.missing:
                question.found[rank] = Report.from_json(report)
                question.missing.discard(rank)
                if not question.missing:
                    question.complete.set()


class Waiting(Keeper):
    """Carries futures to their end in the threads that wait for them.

    Args:
        inflight: the table of futures.
        asker: asks other ranks when a deadline has passed.
    """

    def __init__(self, inflight: InFlight, asker: Asker) -> None:
        self._inflight = inflight
        self._asker = asker

    def finish(self, future: EngineFuture) -> None:
        inflight = self._inflight
        if inflight.refusal:
            self._check_not_closed(future)
        if not inflight.enter(future):
            return
        try:
            if inflight.core.wait(future.handle, BRIEF_SECONDS) is State.DONE:
                inflight.succeed(future)
            if not future.ended:
                self._wait_long(future)
        finally:
            inflight.leave(future)
        if future.error is not None:
            inflight.raised = True

    def _wait_long(self, future: EngineFuture) -> None:
        core, note = self._inflight.core, self._inflight.record.note
        note(Noted.WAIT, future.key, group=future.group)
        while not future.ended:
            seconds = max(0.0, future.deadline - time.monotonic())
            state = core.wait(future.handle, seconds)
            if state is State.PENDING:
                self.expire([future])
            elif state is State.DONE and future.error is None:
                self._inflight.succeed(future)
            else:
                self._await_cause(future)
        note(Noted.WAITED, future.key, group=future.group)

    def has_ended(self, future: EngineFuture) -> bool:
        inflight = self._inflight
        if inflight.refusal:
            self._check_not_closed(future)
        with inflight.lock:
            if future.ended:
                return True
            is_done = inflight.core.state(future.handle) is State.DONE
            is_watched = future.watch is not None
        if is_done and is_watched:
            inflight.succeed(future)  # or the result would not be in its place
        return is_done

    def call_when_done(self, future: EngineFuture, callback: Callback) -> None:
        with self._inflight.lock:
            if not future.ended:
                future.callbacks.append(callback)
                return
        callback(future)

    def expire(self, futures: Sequence[EngineFuture]) -> None:
        """Explain and fail moves whose deadline has passed; blocks for the answers."""
        inflight = self._inflight
        with inflight.lock:
            mine = [f for f in futures if not (f.ended or f.error or f.expiring)]
            for future in mine:
                future.expiring = True
            if not mine:
                # Another thread is at it.
                inflight.changed.wait_for(
                    lambda: futures[0].ended or not futures[0].expiring, CAUSE_SECONDS
                )
                return
        reports = self._asker.ask(ANSWER_SECONDS)
        self._asker.remember()
        for future in mine:
            self._fail_late(future, reports)
        with inflight.lock:
            for future in mine:
                future.expiring = False
            inflight.changed.notify_all()
        write_record(inflight)

    def _fail_late(
        self, future: EngineFuture, reports: Mapping[int, Report | None]
    ) -> None:
        explanation = explain(
            key=future.key,
            group=future.group,
            move_text=full_text(future.prepared.move),
            seconds=time.monotonic() - future.submitted,
            my_rank=self._inflight.rank,
            reports=reports,
        )
        error = explanation.kind(explanation.text)
        if self._inflight.fail(future, error):
            self._inflight.break_group(future.epoch, future.prepared.scope, error)
            self._inflight.tell_members(future, error)

    def _await_cause(self, future: EngineFuture) -> None:
        inflight = self._inflight
        seconds = CAUSE_SECONDS if inflight.absence(future) is None else 0.1
        with inflight.lock:
            inflight.changed.wait_for(lambda: future.ended, seconds)
        if not future.ended:
            error = inflight.absence(future) or no_cause(future)
            if inflight.fail(future, error):
                inflight.tell_members(future, error)

    def _check_not_closed(self, future: EngineFuture) -> None:
        if not future.ended and self._inflight.refusal:
            self._inflight.check_usable(future.what)


def no_cause(future: EngineFuture) -> WireError:
    """The error for a task that failed without anyone saying why."""
    return WireError(f"{future.what}: the core failed it and gave no cause")
