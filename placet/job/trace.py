"""The recorded steps as a trace for ui.perfetto.dev or chrome://tracing.

One process a rank; its lanes are threads. Moves overlap one another, which slices of a
thread cannot, so they are asynchronous slices that carry their bytes. So are nodes that
cross another of their lane; those inside another nest.

Source: Chrome's Trace Event Format ("X" complete, "b"/"e" asynchronous, "C" counter,
"M" metadata; times in microseconds).
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from placet.job.report_events import LANES, RankEvents, RunEvents, Span
from placet.job.report_timeline import recorded_steps, spans_of

TraceEvent = Mapping[str, Any]

MAX_STEPS = 50
_ARGS = (
    "sent_bytes",
    "received_bytes",
    "predicted_sent_bytes",
    "predicted_received_bytes",
)


def write_trace(run: RunEvents, path: Path) -> None:
    """Write the trace of the last MAX_STEPS recorded steps to `path`."""
    text = json.dumps(trace(run), separators=(",", ":"), allow_nan=False)
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def trace(run: RunEvents) -> dict[str, Any]:
    """The trace as the object its JSON holds."""
    steps = recorded_steps(run)[-MAX_STEPS:]
    events: list[TraceEvent] = []
    for rank in run.ranks:
        events += _names(rank.rank)
        events += _of_rank(rank, steps)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run": run.name, "num_ranks": run.num_ranks},
    }


def _names(rank: int) -> Iterator[TraceEvent]:
    def name(kind: str, tid: int, args: Mapping[str, Any]) -> TraceEvent:
        return {"ph": "M", "name": kind, "pid": rank, "tid": tid, "args": args}

    yield name("process_name", 0, {"name": f"rank {rank}"})
    yield name("process_sort_index", 0, {"sort_index": rank})
    for tid, lane in enumerate(("steps", *LANES)):
        yield name("thread_name", tid, {"name": lane})
        yield name("thread_sort_index", tid, {"sort_index": tid})


def _of_rank(rank: RankEvents, steps: list[int]) -> Iterator[TraceEvent]:
    spans = spans_of(rank, steps)
    yield from _steps(rank, spans)
    key = 0
    for lane in LANES:
        own = [s for s in spans if s.lane == lane]
        around: list[float] = []  # ends of the slices that this one may nest in
        for span in sorted(own, key=lambda s: (s.start_seconds, -s.end_seconds)):
            while around and around[-1] <= span.start_seconds:
                around.pop()
            if lane == "move" or (around and span.end_seconds > around[-1]):
                key += 1
                yield from _asynchronous(rank.rank, lane, span, f"{rank.rank}.{key}")
                continue
            around.append(span.end_seconds)
            times = (span.start_seconds, span.end_seconds)
            yield _slice(rank.rank, _tid(lane), span.name, *times, {"step": span.step})


def _tid(lane: str) -> int:
    return 1 + LANES.index(lane)


def _steps(rank: RankEvents, spans: Sequence[Span]) -> Iterator[TraceEvent]:
    """A slice for each step, up to the next one's start, and its loss as a counter."""
    losses = {s.step: s.loss for s in rank.steps}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    for span in spans:
        starts.setdefault(span.step, span.start_seconds)
        if span.lane != "save":
            ends[span.step] = max(ends.get(span.step, 0.0), span.end_seconds)
    for step, start in starts.items():
        end = min(ends.get(step, start), starts.get(step + 1, math.inf))
        loss = losses.get(step, math.nan)
        args = {"loss": loss} if math.isfinite(loss) else {}
        yield _slice(rank.rank, 0, f"step {step}", start, max(start, end), args)
        if args:
            where = {"pid": rank.rank, "ts": _microseconds(end)}
            yield {"ph": "C", "name": "loss", **where, "args": args}


def _slice(
    rank: int, tid: int, name: str, start: float, end: float, args: Mapping[str, Any]
) -> TraceEvent:
    times = {"ts": _microseconds(start), "dur": _microseconds(end - start)}
    return {"ph": "X", "name": name, "pid": rank, "tid": tid, **times, "args": args}


def _asynchronous(rank: int, lane: str, span: Span, key: str) -> Iterator[TraceEvent]:
    category = "boxing" if lane == "move" else lane
    common = {"cat": category, "name": span.name, "id": key, "pid": rank}
    common["tid"] = _tid(lane)
    found = {key: getattr(span, key) for key in _ARGS}
    args = {key: int(value) for key, value in found.items() if math.isfinite(value)}
    args["step"] = span.step
    yield {"ph": "b", "ts": _microseconds(span.start_seconds), **common, "args": args}
    yield {"ph": "e", "ts": _microseconds(span.end_seconds), **common}


def _microseconds(time_seconds: float) -> float:
    return round(time_seconds * 1e6, 3)
