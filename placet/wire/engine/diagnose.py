"""Why a collective does not end, in words: from what each rank says of itself.

    rank 0: 'grads.0' over ranks 0, 1 has not ended after 30 s
      it is AllReduce of torch.float32 over ranks 0, 1
      submitted by rank 0, not by rank 1
      rank 1 waits for 'norm' over ranks 0, 1 for 29 s; last finished 'grads.9'
      likely cause: an application cycle: rank 0 waits for 'grads.0' before it submits
        'norm'; rank 1 waits for 'norm' before it submits 'grads.0'
      fix: submit all of these on every rank before the first wait

All is pure: reports in, an explanation out (`waits` finds the cause). It serves the
error that a deadline raises and `placet doctor`, which reads the same from records.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from placet.errors import MoveMismatch, WireError, WireTimeout
from placet.wire.engine.causes import (
    SHOWN,
    chain_of,
    fix_of,
    name_of,
    pending_text,
    ranks_text,
    sentence_of,
)
from placet.wire.engine.keys import short_texts
from placet.wire.engine.waits import Called, Cause, Situation, find

REPORT_BYTES = 1 << 16
"""A report as it travels holds at most so many bytes."""

_NOT_A_REPORT = (AttributeError, KeyError, OverflowError, RecursionError, TypeError)


@dataclass(frozen=True)
class PendingMove:
    """A move that a rank submitted and that is not done there.

    Args:
        key, group: which collective it is.
        move_text: what was submitted, with all that members must agree on.
        seconds: how long ago.
        heard: members that are known to have submitted it.
    """

    key: str
    group: tuple[int, ...]
    move_text: str
    seconds: float
    heard: tuple[int, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a rank says of itself when asked.

    Args:
        rank: whose it is.
        pending: the moves that are not done.
        waiting_for_key, waiting_for_group: what its program stands still for; None
            where it computes.
        finished: keys of the moves that were done last, the newest at the end.
        waiting_seconds: how long its program has stood still; None if not known.
        submitted_seconds: how long ago it last submitted a move; None if not known.
        finished_seconds: how long ago the newest was done; None if not known.
        num_left_out: pending moves that were left out, to keep the report short.
    """

    rank: int
    pending: tuple[PendingMove, ...]
    waiting_for_key: str | None
    waiting_for_group: tuple[int, ...] | None
    finished: tuple[str, ...]
    waiting_seconds: float | None = None
    finished_seconds: float | None = None
    submitted_seconds: float | None = None
    num_left_out: int = 0

    @property
    def waiting(self) -> Called | None:
        """The collective that its program stands still for."""
        if self.waiting_for_key is None or self.waiting_for_group is None:
            return None
        return self.waiting_for_key, self.waiting_for_group

    def to_json(self) -> bytes:
        """As it travels, in at most REPORT_BYTES: the oldest moves are left out.

        What the program waits for is kept longest, as it tells most.
        """
        order = sorted(
            range(len(self.pending)),
            key=lambda i: (
                (self.pending[i].key, self.pending[i].group) != self.waiting,
                self.pending[i].seconds,
            ),
        )
        keep = len(order)
        while True:
            short = replace(
                self,
                pending=tuple(self.pending[i] for i in sorted(order[:keep])),
                num_left_out=self.num_left_out + len(order) - keep,
            )
            data = json.dumps(asdict(short)).encode()
            if len(data) <= REPORT_BYTES:
                return data
            if keep == 0:
                break
            keep = min(keep - 1, keep * REPORT_BYTES // len(data))
        # Keys or groups beyond all measure: who it is still says that it lives.
        bare = Report(self.rank, (), None, None, (), num_left_out=short.num_left_out)
        return json.dumps(asdict(bare)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Report":
        """The report in `data`.

        Raises:
            ValueError: it is none.
        """
        if len(data) > REPORT_BYTES:
            raise ValueError(f"a report of {len(data)} bytes, at most {REPORT_BYTES}")
        try:
            return _report(json.loads(data))
        except _NOT_A_REPORT as error:
            raise ValueError(f"not a report of a rank: {error!r}") from None


@dataclass(frozen=True)
class Explanation:
    """Why a collective does not end.

    Args:
        kind: the error to raise.
        text: its message, some lines.
        cause: one of `waits.Cause`.
        sentence: the cause in one sentence.
        fix: the nearest fix in one sentence.
        ranks: who causes it.
    """

    kind: type[WireError]
    text: str
    cause: str
    sentence: str
    fix: str
    ranks: tuple[int, ...]


def explain(
    *,
    key: str,
    group: tuple[int, ...],
    move_text: str,
    seconds: float,
    my_rank: int,
    reports: Mapping[int, Report | None],
) -> Explanation:
    """Say why a collective that `my_rank` submitted has not ended.

    Args:
        key, group, move_text: what it is.
        seconds: how long ago it was submitted.
        my_rank: who asks; its own report is used, if given, for what it has heard.
        reports: what each rank that was asked said; None for no answer. The more are
            asked, the farther a chain of waits can be followed.
    """
    called = (key, group)
    own = PendingMove(key, group, move_text, seconds)
    situation = _situation(own, my_rank, reports)
    found = find(situation, my_rank)
    mismatches = (Cause.OTHER_MOVE, Cause.OTHER_GROUP, Cause.OTHER_TENSOR)
    wrong = found.cause in mismatches
    kind = MoveMismatch if wrong and found.called == called else WireTimeout
    sentence = chain_of(situation, found) + sentence_of(situation, found)
    missing = situation.missing(called)
    there = [m for m in group if m not in missing]
    lines = [
        f"rank {my_rank}: {name_of(called)} has not ended after "
        f"{seconds_text(seconds)}",
        f"it is {short_texts([move_text])[0]}",
        f"submitted by {ranks_text(there)}"
        + (f", not by {ranks_text(missing)}" if missing else ""),
    ]
    told = dict.fromkeys([*missing, *found.ranks, *found.path])
    told.pop(my_rank, None)
    lines += [_doing(rank, reports, situation) for rank in list(told)[:SHOWN]]
    if len(told) > SHOWN:
        lines.append(f"and {len(told) - SHOWN} ranks more")
    fix = fix_of(situation, found)
    lines += [f"likely cause: {found.cause}: {sentence}", f"fix: {fix}"]
    return Explanation(
        kind, "\n  ".join(lines), found.cause, sentence, fix, found.ranks
    )


def _situation(
    own: PendingMove, my_rank: int, reports: Mapping[int, Report | None]
) -> Situation:
    """All reports in one picture, in which `my_rank` waits for `own`."""
    texts: dict[Called, dict[int, str]] = {}
    submitted: dict[Called, set[int]] = {}
    ages: dict[Called, float] = {}
    last: dict[int, float] = {}
    waits: dict[int, Called] = {}
    given = [report for report in reports.values() if report is not None]
    said = [(r.rank, p) for r in given for p in r.pending]
    for rank, pending in [*said, (my_rank, own)]:
        called = (pending.key, pending.group)
        texts.setdefault(called, {})[rank] = pending.move_text
        submitted.setdefault(called, set()).update((rank, *pending.heard))
        ages[called] = max(ages.get(called, 0.0), pending.seconds)
    for report in given:
        recent = [p.seconds for p in report.pending]
        if report.submitted_seconds is not None:
            recent.append(report.submitted_seconds)
        if recent:
            last[report.rank] = min(recent)
        if report.waiting is not None:
            waits[report.rank] = report.waiting
            # Whoever waits for a move has submitted it, if the report left it out too.
            submitted.setdefault(report.waiting, set()).add(report.rank)
    waits[my_rank] = (own.key, own.group)
    return Situation(
        texts=texts,
        submitted={c: frozenset(ranks) for c, ranks in submitted.items()},
        waits=waits,
        ages_seconds=ages,
        last_seconds=last,
        reported=frozenset(r.rank for r in given),
        silent=frozenset(r for r, report in reports.items() if report is None),
    )


def _doing(
    rank: int, reports: Mapping[int, Report | None], situation: Situation
) -> str:
    """What a rank does instead, in one line."""
    if rank not in reports:
        return f"rank {rank} was not asked"
    report = reports[rank]
    if report is None:
        return f"rank {rank} gave no answer: paused or dead"
    text = f"rank {rank} computes"
    if report.waiting is None and rank in situation.held:
        text = f"rank {rank} {pending_text(situation, situation.held[rank])}"
    if report.waiting is not None:
        text = f"rank {rank} waits for {name_of(report.waiting)}"
        ages = [p.seconds for p in report.pending if (p.key, p.group) == report.waiting]
        since = report.waiting_seconds
        since = max(ages, default=None) if since is None else since
        text += "" if since is None else f" for {seconds_text(since)}"
    if report.finished:
        text += f"; last finished {report.finished[-1]!r}"
        if report.finished_seconds is not None:
            text += f" {seconds_text(report.finished_seconds)} ago"
    else:
        text += "; finished nothing so far"
    if report.num_left_out:
        text += f"; {report.num_left_out} of its pending moves are not told"
    return text


def seconds_text(seconds: float) -> str:
    """`0.25 s`, `12.3 s`, `1234 s`."""
    return f"{round(seconds, 2):.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def _report(read: Any) -> Report:
    group = read["waiting_for_group"]
    return Report(
        rank=int(read["rank"]),
        pending=tuple(
            PendingMove(
                key=str(p["key"]),
                group=tuple(map(int, p["group"])),
                move_text=str(p["move_text"]),
                seconds=float(p["seconds"]),
                heard=tuple(map(int, p["heard"])),
            )
            for p in read["pending"]
        ),
        waiting_for_key=_text_or_none(read["waiting_for_key"]),
        waiting_for_group=None if group is None else tuple(map(int, group)),
        finished=tuple(map(str, read["finished"])),
        waiting_seconds=_number_or_none(read["waiting_seconds"]),
        finished_seconds=_number_or_none(read["finished_seconds"]),
        submitted_seconds=_number_or_none(read["submitted_seconds"]),
        num_left_out=int(read["num_left_out"]),
    )


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else float(value)
