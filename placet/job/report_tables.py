"""The report's figures and tables, from a run's events.

bytes per step of a boxing = its bytes / the (rank, step) pairs it was recorded in
share of step time         = its seconds / the seconds of those steps
ratio to the lower bound   = bytes received / (bound x times it fired)
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from placet.job.report_events import Event, RankEvents, RunEvents, Span, as_number


@dataclass(frozen=True)
class BoxingRow:
    """One boxing over all ranks; bytes and seconds are per rank and step.

    Args:
        name, change: as in the plan, the change as `P(sum) -> B @data`.
        tensors, payload_bytes: what it carries each time it fires.
        sent_bytes, received_bytes, seconds, share: recorded, or planned bytes only.
        waited_seconds: how long the rank stood still for it, if that was recorded.
        bound_bytes: the fewest bytes a rank can receive; ratio: received to that.
        moves, wrong_moves: recorded, and how many of them moved other bytes than
            predicted; moves is 0 where nothing was recorded.
    """

    name: str
    change: str
    tensors: float
    payload_bytes: float
    sent_bytes: float
    received_bytes: float
    seconds: float
    share: float
    waited_seconds: float
    bound_bytes: float
    ratio: float
    moves: int
    wrong_moves: int


@dataclass(frozen=True)
class Account:
    """One account of the ledger; NaN for a rank that did not close its books."""

    name: str
    what: str
    by_rank: tuple[float, ...]

    @property
    def total(self) -> float:
        """Over the ranks that closed their books."""
        known = [b for b in self.by_rank if math.isfinite(b)]
        return sum(known) if known else math.nan


ACCOUNTS = {
    "boxings": "moves of boxings: predicted exactly, recorded exactly",
    "control": "framing, the store, probes",
    "foreign": "others' code: checkpoints' messages, other collectives",
    "files": "written to checkpoints; moved only where their folder is remote",
}


def boxing_rows(run: RunEvents) -> list[BoxingRow]:
    """Every boxing of the plan, then those that were recorded without being in it."""
    planned: dict[str, list[Event]] = defaultdict(list)
    for rank in run.ranks:
        for boxing in rank.start.get("boxings") or []:
            planned[str(boxing.get("name", "?"))].append(boxing)
    recorded: dict[str, list[tuple[int, Span]]] = defaultdict(list)
    for rank in run.ranks:
        for move in rank.moves:
            recorded[move.name].append((rank.rank, move))
    step_seconds = {
        (r.rank, s.step): s.seconds for r in run.ranks for s in r.steps if s.seconds > 0
    }
    return [
        _boxing_row(name, planned.get(name, []), recorded.get(name, []), step_seconds)
        for name in dict.fromkeys([*planned, *recorded])
    ]


def _boxing_row(
    name: str,
    planned: Sequence[Event],
    recorded: Sequence[tuple[int, Span]],
    step_seconds: dict[tuple[int, int], float],
) -> BoxingRow:
    def plan(key: str) -> float:
        return _mean([as_number(boxing.get(key)) for boxing in planned])

    places = {(rank, move.step) for rank, move in recorded}
    num_places = max(len(places), 1)
    taken = sum(move.seconds for _, move in recorded) / num_places
    usual = median(step_seconds.values()) if step_seconds else math.nan
    steps = [step_seconds.get(place, usual) for place in places]
    sent, received = plan("sent_bytes"), plan("received_bytes")
    firings = 1.0
    if recorded:
        sent = sum(move.sent_bytes for _, move in recorded) / num_places
        got = sum(move.received_bytes for _, move in recorded) / num_places
        firings = got / received if received > 0 else 1.0
        received = got
    bound = plan("bound_bytes") * firings
    first = planned[0] if planned else {}
    change = f"{first.get('src', '?')} -> {first.get('dst', '?')}"
    axis = first.get("axis")
    return BoxingRow(
        name=name,
        change=(f"{change} @{axis}" if axis else change)
        if planned
        else "not in the plan",
        tensors=plan("tensors"),
        payload_bytes=plan("payload_bytes"),
        sent_bytes=sent,
        received_bytes=received,
        seconds=taken if recorded else math.nan,
        share=taken / fmean(steps) if steps else math.nan,
        waited_seconds=sum(move.waited_seconds for _, move in recorded) / num_places
        if recorded
        else math.nan,
        bound_bytes=bound,
        ratio=_ratio(received, bound),
        moves=sum(move.as_predicted is not None for _, move in recorded),
        wrong_moves=sum(move.as_predicted is False for _, move in recorded),
    )


def _ratio(received: float, bound: float) -> float:
    if bound > 0:
        return received / bound
    return math.inf if received > 0 and bound == 0 else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if math.isfinite(v)]
    return fmean(known) if known else math.nan


def total_row(rows: Sequence[BoxingRow]) -> BoxingRow:
    """The sum of all rows (what is unknown in a row is left out)."""

    def add(key: str) -> float:
        known = [v for v in (getattr(r, key) for r in rows) if math.isfinite(v)]
        return sum(known) if known else math.nan

    bounded = [row for row in rows if math.isfinite(row.bound_bytes)]
    bound = add("bound_bytes")
    return BoxingRow(
        name="all",
        change="",
        tensors=add("tensors"),
        payload_bytes=add("payload_bytes"),
        sent_bytes=add("sent_bytes"),
        received_bytes=add("received_bytes"),
        seconds=add("seconds"),
        share=add("share"),
        waited_seconds=add("waited_seconds"),
        bound_bytes=bound,
        ratio=_ratio(sum(row.received_bytes for row in bounded), bound),
        moves=sum(r.moves for r in rows),
        wrong_moves=sum(r.wrong_moves for r in rows),
    )


def accounts(run: RunEvents) -> list[Account]:
    """The three accounts, and whatever other account the ranks' books hold."""
    books = [_book(rank) for rank in run.ranks]
    names = dict.fromkeys([*ACCOUNTS, *(name for book in books for name in book)])
    return [
        Account(
            name=name,
            what=ACCOUNTS.get(name, ""),
            by_rank=tuple(book.get(name, math.nan) for book in books),
        )
        for name in names
    ]


def _book(rank: RankEvents) -> dict[str, float]:
    """The rank's closed books; before they are closed, what its steps moved so far."""
    ledger = rank.end.get("ledger")
    if isinstance(ledger, dict) and ledger:
        return {str(name): as_number(value) for name, value in ledger.items()}
    moved = [s.sent_bytes + s.received_bytes for s in rank.steps]
    moved = [m for m in moved if math.isfinite(m)]
    return {"boxings": sum(moved)} if moved else {}


def throughput(rank: RankEvents) -> list[tuple[int, float]]:
    """(step, targets per second of the whole job); steps without a time are left out.

    A step's targets are those of the global batch, so one rank tells for all.
    """
    return [
        (s.step, s.targets / s.seconds)
        for s in rank.steps
        if s.seconds > 0 and math.isfinite(s.targets)
    ]


def steady(rank: RankEvents, key: str) -> float:
    """The median of a step's field, without the first tenth of the steps (warm-up)."""
    steps = rank.steps[len(rank.steps) // 10 :]
    if len(rank.steps) > 1:
        steps = steps if steps[0] is not rank.steps[0] else steps[1:]
    values = [v for v in (getattr(s, key) for s in steps) if math.isfinite(v)]
    return median(values) if values else math.nan


def environment(run: RunEvents) -> list[tuple[str, str]]:
    """What the ranks ran on; where they differ, each value with its ranks."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in run.ranks:
        for key, value in dict(rank.start.get("environment") or {}).items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found[str(key)][text].append(rank.rank)
    rows = []
    for key, values in found.items():
        if len(values) == 1:
            rows.append((key, next(iter(values))))
            continue
        each = (f"{v} (rank {', '.join(map(str, r))})" for v, r in values.items())
        rows.append((key, "; ".join(each)))
    return rows
