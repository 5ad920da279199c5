"""What a run wrote down: events-rank<r>.jsonl, read into values.

A run may still be going, may have been killed in the middle of a line, or may lack
some ranks' files. Everything that can be read is; what cannot be is counted and told.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

MAX_APART_SECONDS = 30.0
LANES = ("compute", "move", "update", "load", "save")
_FILE = re.compile(r"events-rank(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class Step:
    """One training step as one rank saw it; what is unknown is NaN."""

    step: int
    seconds: float
    loss: float
    lr: float
    targets: float
    grad_norm: float
    sent_bytes: float
    received_bytes: float
    skipped: bool


@dataclass(frozen=True, slots=True)
class Span:
    """A node, or one move of a boxing, in time (seconds since the run's start).

    `waited_seconds` is how long its rank stood still for it, up to its end.
    """

    step: int
    name: str
    lane: str
    start_seconds: float
    end_seconds: float
    sent_bytes: float = math.nan
    received_bytes: float = math.nan
    predicted_sent_bytes: float = math.nan
    predicted_received_bytes: float = math.nan
    waited_seconds: float = math.nan

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_seconds - self.start_seconds

    @property
    def as_predicted(self) -> bool | None:
        """Whether just the predicted bytes moved; None where none are predicted."""
        if math.isnan(self.predicted_sent_bytes + self.predicted_received_bytes):
            return None
        return (self.sent_bytes, self.received_bytes) == (
            self.predicted_sent_bytes,
            self.predicted_received_bytes,
        )


@dataclass(frozen=True)
class RankEvents:
    """The events of one rank, by kind and in order.

    Args:
        rank: whose they are.
        start, end: the first and the last event; empty where there is none.
        unreadable_lines: lines that are no JSON object (a torn last line, mostly).
        last_t_seconds: the largest time read.
    """

    rank: int
    start: Event
    end: Event
    steps: tuple[Step, ...]
    nodes: tuple[Span, ...]
    moves: tuple[Span, ...]
    evaluations: tuple[Event, ...]
    saves: tuple[Event, ...]
    results: tuple[Event, ...]
    unreadable_lines: int
    last_t_seconds: float


@dataclass(frozen=True)
class RunEvents:
    """All that a run folder holds; `ranks` is in order of rank and never empty."""

    name: str
    ranks: tuple[RankEvents, ...]

    @property
    def first(self) -> RankEvents:
        """The lowest rank that left events: it speaks where ranks agree."""
        return self.ranks[0]

    @property
    def num_ranks(self) -> int:
        """Ranks of the job, whether or not each left events."""
        told = (int(as_number(r.start.get("num_ranks"), 0)) for r in self.ranks)
        return max(max(told), self.ranks[-1].rank + 1)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job that left no events."""
        present = {r.rank for r in self.ranks}
        return tuple(r for r in range(self.num_ranks) if r not in present)


def as_number(value: object, default: float = math.nan) -> float:
    """`value` as a float; `default` for null and whatever else is no number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return default
    return float(value) if isinstance(value, int | float) else default


def read_run(run_dir: Path) -> RunEvents:
    """Read the events of every rank.

    Raises:
        ValueError: no such folder, or no readable events in it.
    """
    run_dir = Path(run_dir)
    wanted = "a run folder (runs/<name>-<date>-<time>) with events-rank<r>.jsonl in it"
    if not run_dir.is_dir():
        raise ValueError(f"no folder {str(run_dir)!r}; needed {wanted}")
    found = {
        int(match[1]): path
        for path in run_dir.iterdir()
        if (match := _FILE.fullmatch(path.name))
    }
    if not found:
        inside = sorted(path.name for path in run_dir.iterdir())[:5]
        nearest = sorted(p.parent.name for p in run_dir.glob("*/events-rank*.jsonl"))
        hint = f"; did you mean {str(run_dir / nearest[-1])!r}?" if nearest else ""
        raise ValueError(
            f"{str(run_dir)!r} holds {inside or 'nothing'}; needed {wanted}{hint}"
        )
    ranks = _aligned([_read_rank(rank, found[rank]) for rank in sorted(found)])
    if not any(r.start or r.steps for r in ranks):
        raise ValueError(
            f"none of {sorted(p.name for p in found.values())} in {str(run_dir)!r} "
            "holds a start or step event: the run ended before it began"
        )
    return RunEvents(run_dir.resolve().name, ranks)


def _aligned(ranks: Sequence[RankEvents]) -> tuple[RankEvents, ...]:
    """The ranks with their nodes and moves on the first rank's clock.

    Each rank counts from its own start, a few milliseconds from the others'; their
    wall clocks say how many. Clocks that are further apart than MAX_APART_SECONDS are
    not set, so they are not used.
    """
    starts = [as_number(r.start.get("time_unix")) for r in ranks]
    moved = [start - starts[0] for start in starts]
    return tuple(
        replace(r, nodes=_later(r.nodes, by), moves=_later(r.moves, by))
        if 0 < abs(by) <= MAX_APART_SECONDS
        else r
        for r, by in zip(ranks, moved, strict=True)
    )


def _later(spans: Sequence[Span], seconds: float) -> tuple[Span, ...]:
    return tuple(
        replace(
            s,
            start_seconds=s.start_seconds + seconds,
            end_seconds=s.end_seconds + seconds,
        )
        for s in spans
    )


def _read_rank(rank: int, path: Path) -> RankEvents:
    by_kind: dict[str, list[Event]] = {}
    unreadable = 0
    last = 0.0
    for event in _lines(path):
        if event is None:
            unreadable += 1
            continue
        by_kind.setdefault(str(event.get("kind")), []).append(event)
        for key in ("t", "end"):
            last = max(last, as_number(event.get(key), 0.0))
    steps = {s.step: s for s in map(_step, by_kind.get("step", []))}
    return RankEvents(
        rank=rank,
        start=(by_kind.get("start") or [{}])[0],
        end=(by_kind.get("end") or [{}])[-1],
        steps=tuple(steps[key] for key in sorted(steps)),
        nodes=tuple(_spans(by_kind.get("node", []))),
        moves=tuple(_spans(by_kind.get("boxing", []))),
        evaluations=tuple(by_kind.get("evaluate", [])),
        saves=tuple(by_kind.get("save", [])),
        results=tuple(by_kind.get("result", [])),
        unreadable_lines=unreadable,
        last_t_seconds=last,
    )


def _lines(path: Path) -> Iterator[Event | None]:
    """Each line's event; None for one that cannot be read."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                yield None
            else:
                yield event if isinstance(event, dict) else None


def _step(event: Event) -> Step:
    def read(key: str) -> float:
        return as_number(event.get(key))

    return Step(
        step=int(as_number(event.get("step"), 0)),
        seconds=read("seconds"),
        loss=read("loss"),
        lr=read("lr"),
        targets=read("targets"),
        grad_norm=read("grad_norm"),
        sent_bytes=read("sent_bytes"),
        received_bytes=read("received_bytes"),
        skipped=event.get("skipped") is True,
    )


def _spans(events: list[Event]) -> Iterator[Span]:
    for event in events:
        start, end = as_number(event.get("start")), as_number(event.get("end"))
        if not (math.isfinite(start) and math.isfinite(end)):
            continue
        lane = str(event.get("lane", "move"))  # a boxing's moves name no lane
        yield Span(
            step=int(as_number(event.get("step"), 0)),
            name=str(event.get("name", "?")),
            lane=lane if lane in LANES else "compute",
            start_seconds=start,
            end_seconds=max(start, end),
            sent_bytes=as_number(event.get("sent_bytes")),
            received_bytes=as_number(event.get("received_bytes")),
            predicted_sent_bytes=as_number(event.get("predicted_sent_bytes")),
            predicted_received_bytes=as_number(event.get("predicted_received_bytes")),
            waited_seconds=as_number(event.get("waited")),
        )
