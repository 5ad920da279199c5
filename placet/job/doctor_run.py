"""What happened in a run that failed: from its ranks' flight records and events.

    flight-<rank>.jsonl, events-rank<rank>.jsonl, rank<rank>.log -> read_evidence
    -> Evidence -> tell -> Story: one sentence, the ranks, the moves that were pending

Ranks may lack any of these: one that was killed writes no flight record. `tell` is
pure; the cause is found by `wire.engine.diagnose`, from reports made of the records.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from placet.errors import PAGE
from placet.job.report_events import read_run
from placet.wire.engine.causes import ranks_text
from placet.wire.engine.diagnose import (
    Explanation,
    PendingMove,
    Report,
    explain,
)
from placet.wire.engine.flight import Flight, Note, Noted, flights_in, load
from placet.wire.engine.waits import Called

LOG_BYTES = 4096


@dataclass(frozen=True)
class Evidence:
    """What a run's folder holds.

    Args:
        num_ranks: of the job.
        flights: the ranks' flight records; killed ranks have none.
        statuses: "done", "stopped" or "failed", of ranks that wrote their end.
        steps: the last step that each rank finished.
        last_words: the last line of each rank's log.
        logs: ranks that have a log.
        problems: records that could not be read, and why.
    """

    num_ranks: int
    flights: Mapping[int, Flight]
    statuses: Mapping[int, str] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    last_words: Mapping[int, str] = field(default_factory=dict)
    logs: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """How a rank's wire failed.

    Args:
        rank: where.
        seconds: when, on the wall clock.
        error: the error's class.
        text: its message.
        called: key and group of the move that failed.
    """

    rank: int
    seconds: float
    error: str
    text: str
    called: Called


@dataclass(frozen=True)
class RankStory:
    """One rank's part: see `Evidence`; `report` is what it was at when it failed."""

    rank: int
    has_record: bool
    status: str
    step: int | None
    failure: Failure | None
    report: Report | None
    last_words: str


@dataclass(frozen=True)
class PendingRow:
    """A collective that was not done everywhere when the run failed.

    Args:
        called: key and group.
        texts: what each rank submitted under it.
        submitted, missing: members that had submitted it, and that had not.
        waiting: ranks whose program stood still for it.
        seconds: how long ago it was first submitted.
    """

    called: Called
    texts: Mapping[int, str]
    submitted: tuple[int, ...]
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Story:
    """What happened.

    Args:
        sentence: all of it in one sentence.
        fix: what to do; empty if nothing failed.
        first: the rank that failed first; None if none did, or none can be told.
        ranks: each rank's part, in order.
        pending: the collectives that were not done, the oldest first.
        explanation: of the wait that failed first, where one did.
        problems: see `Evidence`.
    """

    sentence: str
    fix: str
    first: int | None
    ranks: tuple[RankStory, ...]
    pending: tuple[PendingRow, ...]
    explanation: Explanation | None
    problems: tuple[str, ...]


def read_evidence(folder: Path) -> Evidence:
    """Read a run's folder.

    Raises:
        ValueError: it is no run's folder: it has neither flight records nor events.
    """
    flights, problems = dict[int, Flight](), list[str]()
    for rank, path in sorted(flights_in(folder).items() if folder.is_dir() else ()):
        try:
            flights[rank] = load(path)
        except (OSError, ValueError) as error:
            problems.append(str(error))
    counts = [max(f.num_ranks, rank + 1) for rank, f in flights.items()]
    statuses, steps = dict[int, str](), dict[int, int]()
    try:
        run = read_run(folder)
    except ValueError:
        if not flights:
            raise
    else:
        counts.append(run.num_ranks)
        statuses = {r.rank: str(r.end.get("status", "")) for r in run.ranks if r.end}
        steps = {r.rank: r.steps[-1].step for r in run.ranks if r.steps}
    num_ranks = max(counts)
    words = {r: _last_line(folder / log_name(r)) for r in range(num_ranks)}
    logs = frozenset(r for r in range(num_ranks) if (folder / log_name(r)).exists())
    return Evidence(
        num_ranks, flights, statuses, steps, words, logs, problems=tuple(problems)
    )


def log_name(rank: int) -> str:
    """The name of a rank's log in its run's folder, where its output is kept."""
    return f"rank{rank}.log"


def tell(evidence: Evidence) -> Story:
    """Work out what happened."""
    found = {r: _failure(flight) for r, flight in evidence.flights.items()}
    failures = {r: failure for r, failure in found.items() if failure is not None}
    first = _earliest(failures)
    until = first.seconds if first else math.inf
    ranks = range(evidence.num_ranks)
    reports: dict[int, Report | None] = dict.fromkeys(ranks)
    reports |= {r: rebuild(f, until) for r, f in evidence.flights.items()}
    explanation = _explain(first, reports)
    sentence, fix, rank = _sentence(evidence, failures, explanation)
    stories = (
        RankStory(
            rank=r,
            has_record=r in evidence.flights,
            status=evidence.statuses.get(r, ""),
            step=evidence.steps.get(r),
            failure=failures.get(r),
            report=reports[r],
            last_words=evidence.last_words.get(r, ""),
        )
        for r in ranks
    )
    rows = _pending(reports) if explanation else ()
    return Story(
        sentence, fix, rank, tuple(stories), rows, explanation, evidence.problems
    )


def rebuild(flight: Flight, until_seconds: float = math.inf) -> Report:
    """What a rank would have reported at a time, or before its own failure.

    Where its record has dropped events, the report that it may hold is used: moves
    that were submitted long before are only in there.
    """
    if flight.num_dropped and "report" in flight.about:
        return Report.from_json(json.dumps(flight.about["report"]).encode())
    failure = _failure(flight)
    until = min(until_seconds, failure.seconds if failure else flight.seconds)
    pending: dict[Called, list[tuple[float, str]]] = {}
    heard: dict[Called, set[int]] = {}
    waiting: tuple[Called, float] | None = None
    finished: list[tuple[str, float]] = []
    submitted: float | None = None
    for note in _since_reform(flight):
        called = _called(note)
        if note.seconds > until or (failure and _is(note, failure)):
            break
        if note.event == Noted.SUBMIT:
            submitted = note.seconds
            move = str(note.fields.get("move", "?"))
            pending.setdefault(called, []).append((note.seconds, move))
        elif note.event == Noted.HEARD:
            heard.setdefault(called, set()).add(int(note.fields.get("rank", -1)))
        elif note.event == Noted.WAIT:
            waiting = called, note.seconds
        elif note.event == Noted.WAITED:
            waiting = None
        elif note.event in (Noted.DONE, Noted.FAILED):
            pending[called] = pending.get(called, [])[1:]
            heard.pop(called, None)
            if note.event == Noted.DONE:
                finished.append((note.key, note.seconds))
    called_, since = waiting or ((None, None), until)
    return Report(
        rank=flight.rank,
        pending=tuple(
            PendingMove(*called, move, until - at, tuple(sorted(heard.get(called, ()))))
            for called, uses in pending.items()
            for at, move in uses
        ),
        waiting_for_key=called_[0],
        waiting_for_group=called_[1],
        finished=tuple(key for key, _ in finished[-8:]),
        waiting_seconds=until - since if waiting else None,
        finished_seconds=until - finished[-1][1] if finished else None,
        submitted_seconds=None if submitted is None else until - submitted,
    )


def _failure(flight: Flight) -> Failure | None:
    """The first failure that the rank did not outlive."""
    notes = _since_reform(flight)
    note = next((n for n in notes if n.event == Noted.FAILED), None)
    if note is None:
        return None
    error, text = (str(note.fields.get(name, "")) for name in ("error", "text"))
    return Failure(flight.rank, note.seconds, error, text, _called(note))


def _since_reform(flight: Flight) -> tuple[Note, ...]:
    """What counts: a group that was re-formed has outlived all before."""
    reforms = [i for i, n in enumerate(flight.notes) if n.event == Noted.REFORM]
    return flight.notes[reforms[-1] + 1 :] if reforms else flight.notes


def _is(note: Note, failure: Failure) -> bool:
    return note.event == Noted.FAILED and note.seconds == failure.seconds


def _explain(
    first: Failure | None, reports: Mapping[int, Report | None]
) -> Explanation | None:
    """Why the move that failed first did not end; or any that a rank waits for."""
    asked = [r for r in reports.values() if r is not None and r.waiting]
    if first is not None:
        rank, (key, group) = first.rank, first.called
    elif asked and asked[0].waiting:
        rank, (key, group) = asked[0].rank, asked[0].waiting
    else:
        return None
    report = reports[rank]
    uses = report.pending if report else ()
    own = [p for p in uses if p.key == key and group in ((), p.group)]
    return explain(
        key=key,
        group=own[0].group if own else group,
        move_text=own[0].move_text if own else "a move that its record does not hold",
        seconds=own[0].seconds if own else 0.0,
        my_rank=rank,
        reports=reports,
    )


def _sentence(
    evidence: Evidence,
    failures: Mapping[int, Failure],
    explanation: Explanation | None,
) -> tuple[str, str, int | None]:
    """The story in one sentence, what to do, and who failed first."""
    failed = [r for r, s in sorted(evidence.statuses.items()) if s == "failed"]
    lost = _lost(evidence, failures)
    if lost is not None:
        rank, why = lost
        recorded = "its own record shows no failure before"
        if rank not in evidence.flights:
            recorded = "it left no flight record"
        words = evidence.last_words.get(rank)
        log = f"its log ends with {words!r}" if words else "it may have been killed"
        text = f"rank {rank} failed first: {why}; {recorded}; {log}"
        output = _output(evidence, [rank])
        return text, f"see {output}; dmesg shows what was killed for memory", rank
    first = _earliest(failures)
    if first is not None and explanation is not None:
        what = f"its move {first.called[0]!r} ended in {first.error or 'an error'}"
        why, fix = explanation.sentence, explanation.fix
        if first.text and first.error != explanation.kind.__name__:
            # Found at once, as a mismatch is: there was no wait to be explained.
            why = first.text.splitlines()[0]
            fix = f"see {PAGE}#{first.error.lower()}"
        text = f"rank {first.rank} failed first: {what}: {why}"
        return text, fix, first.rank
    if explanation is not None:
        text = f"no rank's wire failed, but one still waits: {explanation.sentence}"
        return text, explanation.fix, None
    if failed:
        text = f"{ranks_text(failed)} failed, with no collective to blame"
        return text, f"see {_output(evidence, failed)}", None
    ended = [r for r, status in evidence.statuses.items() if status == "done"]
    if len(ended) == evidence.num_ranks:
        return f"all {evidence.num_ranks} ranks finished", "", None
    if not evidence.flights:
        return "no rank failed, and none left a flight record", "", None
    return "nothing failed: no rank waited for a collective at the end", "", None


def _output(evidence: Evidence, ranks: Sequence[int]) -> str:
    """`the output of rank 1 (rank1.log)`; a log is named only if it is there."""
    logs = [log_name(r) for r in ranks if r in evidence.logs]
    named = f" ({', '.join(logs[:3])})" if logs else ""
    return f"the output of {ranks_text(ranks)}{named}"


def _earliest(failures: Mapping[int, Failure]) -> Failure | None:
    return min(failures.values(), key=lambda f: f.seconds, default=None)


def _lost(
    evidence: Evidence, failures: Mapping[int, Failure]
) -> tuple[int, str] | None:
    """The rank that others lost first, if nothing had failed before, itself included.

    A failure by PeerLost is no other: it is how its loss was felt.
    """
    found = [
        (note.seconds, int(note.fields.get("rank", -1)), flight.rank, note)
        for flight in evidence.flights.values()
        for note in _since_reform(flight)
        if note.event == Noted.LOST
    ]
    if not found or not failures:
        return None
    seconds, rank, told_by, note = min(found, key=lambda f: f[:3])
    others = [f for f in failures.values() if f.error != "PeerLost" or f.rank == rank]
    if any(f.seconds < seconds for f in others):
        return None
    return rank, f"rank {told_by} lost it ({note.fields.get('text', 'no reason told')})"


def _pending(reports: Mapping[int, Report | None]) -> tuple[PendingRow, ...]:
    """All collectives that some rank had pending, the oldest first."""
    said: dict[Called, dict[int, PendingMove]] = {}
    for rank, report in reports.items():
        for move in report.pending if report else ():
            said.setdefault((move.key, move.group), {}).setdefault(rank, move)
    waits = {r: report.waiting for r, report in reports.items() if report}
    rows = []
    for called, moves in said.items():
        there = set(moves).union(*(move.heard for move in moves.values()))
        rows.append(
            PendingRow(
                called=called,
                texts={rank: move.move_text for rank, move in moves.items()},
                submitted=tuple(m for m in called[1] if m in there),
                missing=tuple(m for m in called[1] if m not in there),
                waiting=tuple(r for r, what in waits.items() if what == called),
                seconds=max(move.seconds for move in moves.values()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _called(note: Note) -> Called:
    group = note.fields.get("group")
    return note.key, tuple(map(int, group)) if isinstance(group, list | tuple) else ()


def _last_line(path: Path) -> str:
    """The last line of a log that says something; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
