"""What a reader wants first: how the run ended, its key figures, and what is wrong."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placet.job.report_events import Event, RunEvents, Step, as_number
from placet.job.report_format import bytes_, count, number, seconds, words
from placet.job.report_tables import BoxingRow, steady, throughput

MAX_METRICS = 4


@dataclass(frozen=True)
class Status:
    """How the run stands: `name` is done, stopped, failed or unfinished."""

    name: str
    note: str


@dataclass(frozen=True)
class Figure:
    """One key figure."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Result:
    """A result: its rows as bars (name, value, width in percent), and its text."""

    title: str
    rows: tuple[tuple[str, str, float], ...]
    text: str


def status(run: RunEvents) -> Status:
    """The worst that any rank reports."""
    ends = {r.rank: str(r.end.get("status", "done")) for r in run.ranks if r.end}
    failed = [rank for rank, how in ends.items() if how == "failed"]
    if failed:
        return Status("failed", f"On rank {', '.join(map(str, failed))}")
    waiting = [r.rank for r in run.ranks if not r.end]
    if waiting or run.missing_ranks:
        last = max(r.last_t_seconds for r in run.ranks)
        note = f"No end on record: still going, or killed; last event at {clock(last)}"
        started = as_number(run.first.start.get("time_unix"))
        silence = time.time() - started - last
        if silence > 0:
            note += f", {seconds(silence)} before this page was made"
        return Status("unfinished", note)
    if "stopped" in ends.values():
        return Status("stopped", "Before its last step")
    return Status("done", "")


def clock(t_seconds: float) -> str:
    """A time since the start: '3:07', '1:02:03'."""
    minutes, rest = divmod(int(t_seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def started(run: RunEvents) -> str:
    """When the run started, in UTC; empty if unknown."""
    unix = as_number(run.first.start.get("time_unix"))
    if not math.isfinite(unix):
        return ""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix))


def figures(run: RunEvents) -> list[Figure]:
    """The key figures, in order of interest; those that are not known are left out."""
    first = run.first
    found = [_loss(first.steps)] if first.steps else []
    found += _metrics(first.evaluations)
    rates = [rate for _, rate in throughput(first)]
    if rates:
        step = steady(first, "seconds")
        rate = f"{count(steady(first, 'targets') / step)}/s"
        note = f"targets, all ranks; {seconds(step)} a step"
        found.append(Figure("Throughput", rate, note))
    sent = max(steady(r, "sent_bytes") for r in run.ranks)
    received = max(steady(r, "received_bytes") for r in run.ranks)
    if math.isfinite(sent):
        note = f"sent by a rank; {bytes_(received)} received"
        found.append(Figure("Bytes per step", bytes_(sent), note))
    wall = as_number(first.end.get("seconds"), first.last_t_seconds)
    steps = f"{len(first.steps):,} step{'s' if len(first.steps) != 1 else ''}"
    found.append(Figure("Wall time", seconds(wall), steps))
    found.append(Figure("Ranks", str(run.num_ranks), str(first.start.get("mesh", ""))))
    return found


def _loss(steps: Sequence[Step]) -> Figure:
    last = steps[-1]
    value = number(last.loss) if math.isfinite(last.loss) else "not finite"
    note = f"step {last.step:,}"
    known = [s for s in steps if math.isfinite(s.loss)]
    if known and known[0] is not last:
        note += f"; {number(known[0].loss)} at step {known[0].step:,}"
    return Figure("Final training loss", value, note)


def _metrics(evaluations: Sequence[Event]) -> Iterator[Figure]:
    if not evaluations:
        return
    last = evaluations[-1]
    metrics = dict(last.get("metrics") or {})
    step = f"step {int(as_number(last.get('step'), 0)):,}"
    # the metrics made for people come before the loss that the job always measures
    names = sorted(metrics, key=lambda name: name == "loss")[:MAX_METRICS]
    for name in names:
        value = number(as_number(metrics[name]))
        yield Figure(f"Validation {words(name)}", value, step)


def results(run: RunEvents) -> list[Result]:
    """The results that ranks reported; the same result of several ranks once."""
    events = {
        str(event.get("title", "Result")): event
        for rank in reversed(run.ranks)
        for event in rank.results
    }
    return [_result(title, event) for title, event in events.items()]


def _result(title: str, event: Event) -> Result:
    rows = [
        (str(row[0]), as_number(row[1]))
        for row in event.get("rows") or []
        if isinstance(row, list | tuple) and len(row) == 2
    ]
    largest = max((abs(v) for _, v in rows if math.isfinite(v)), default=0.0)
    return Result(
        title=title,
        rows=tuple(
            (name, number(value), round(100 * abs(value) / largest, 2))
            if largest and math.isfinite(value)
            else (name, number(value), 0.0)
            for name, value in rows
        ),
        text=str(event.get("text") or ""),
    )


def problems(run: RunEvents, rows: Sequence[BoxingRow]) -> list[str]:
    """What is wrong or missing, in sentences."""
    found = []
    for rank in run.ranks:
        error = rank.end.get("error")
        if error:
            found.append(f"Rank {rank.rank} failed: {error}")
    if run.missing_ranks:
        which = ", ".join(map(str, run.missing_ranks))
        found.append(f"No events of rank {which} (of {run.num_ranks}) are here.")
    for rank in run.ranks:
        if rank.unreadable_lines:
            lines = "line" if rank.unreadable_lines == 1 else "lines"
            found.append(
                f"{rank.unreadable_lines} {lines} of events-rank{rank.rank}.jsonl "
                "cannot be read and are left out (a torn last line is normal in a run "
                "that was killed or still writes)."
            )
        if not rank.start:
            found.append(f"The start event of rank {rank.rank} is missing.")
    bad = [s.step for s in run.first.steps if not math.isfinite(s.loss)]
    if bad:
        found.append(
            f"The loss is not finite in {len(bad)} of {len(run.first.steps)} steps, "
            f"first in step {bad[0]}."
        )
    skipped = sum(s.skipped for s in run.first.steps)
    if skipped:
        found.append(
            f"{skipped} of {len(run.first.steps)} steps were skipped: their gradients "
            "overflowed in half precision."
        )
    wrong = [row for row in rows if row.wrong_moves]
    if wrong:
        names = ", ".join(row.name for row in wrong[:5])
        found.append(
            f"{sum(row.wrong_moves for row in wrong)} moves carried other bytes than "
            f"predicted: {names}."
        )
    last = {r.rank: r.steps[-1].step for r in run.ranks if r.steps}
    if last and max(last.values()) - min(last.values()) > 1:
        each = ", ".join(f"rank {rank}: {step}" for rank, step in last.items())
        found.append(f"The ranks' last steps differ ({each}).")
    return found
