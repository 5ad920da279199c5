"""A few steps in time: every rank's lanes as bars, and where a step's time goes.

    shares of a rank's time = exposed moves, then what of compute, update, load and
                              save happens beside none of those before it, then the rest

A move is *exposed* as far as its rank waits for it, and *hidden* as far as the rank
works meanwhile: only exposed moves make a step longer. Where waiting was not recorded,
a move is exposed while none of its rank's nodes runs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placet.job.report_curves import Tick, nice_ticks
from placet.job.report_events import LANES, RankEvents, RunEvents, Span
from placet.job.report_format import bytes_, percent, seconds

MAX_STEPS = 2
MAX_RANKS = 8
MAX_BARS = 2500
MAX_TRACKS = 4

# the plot is about 900 pixels wide, a character about 6.4
_PIXELS_PER_PERCENT, _PIXELS_PER_CHARACTER, _TEXT_MARGIN = 9.0, 6.4, 8

ROW, TRACK, GAP, RANK_GAP, TOP = 20, 13, 4, 14, 22

Intervals = list[tuple[float, float]]

_SHOWN = ("compute", "update", "load", "save", "move")


@dataclass(frozen=True)
class Bar:
    """One node or move: x and width in percent, y and height in pixels."""

    x: float
    width: float
    y: int
    height: int
    lane: str
    text: str
    title: str


@dataclass(frozen=True)
class Row:
    """One lane of one rank; `rank` is named on its first lane only."""

    rank: str
    lane: str
    y: int
    height: int


@dataclass(frozen=True)
class Shares:
    """Where one rank's time went: (lane, share of the time) in order, summing to 1."""

    rank: int
    parts: tuple[tuple[str, float], ...]
    step_seconds: float
    hidden: float | None


@dataclass(frozen=True)
class Timeline:
    """All a template needs to draw the timeline."""

    steps: tuple[int, ...]
    height: int
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    x_ticks: tuple[Tick, ...]
    step_marks: tuple[Tick, ...]
    shares: tuple[Shares, ...]
    left_out: int
    num_ranks: int
    description: str


def spans_of(rank: RankEvents, steps: Iterable[int]) -> list[Span]:
    """The rank's nodes and moves in `steps`; each move once.

    A `move` node that names a boxing is left out where that boxing's own moves were
    recorded: they carry the bytes.
    """
    wanted = set(steps)
    moves = [m for m in rank.moves if m.step in wanted]
    named = {(m.step, m.name) for m in moves}
    nodes = [
        n
        for n in rank.nodes
        if n.step in wanted and not (n.lane == "move" and (n.step, n.name) in named)
    ]
    return sorted(nodes + moves, key=lambda s: (s.start_seconds, s.end_seconds))


def recorded_steps(run: RunEvents) -> list[int]:
    """Steps whose nodes were recorded; those with moves where no nodes were."""
    nodes = {n.step for r in run.ranks for n in r.nodes}
    return sorted(nodes or {m.step for r in run.ranks for m in r.moves})


def draw(run: RunEvents) -> Timeline | None:
    """The last few consecutive recorded steps, or None if nothing was recorded."""
    steps = _last_in_a_row(recorded_steps(run))
    if not steps:
        return None
    ranks = run.ranks[:MAX_RANKS]
    spans = {r.rank: spans_of(r, steps) for r in ranks}
    while len(steps) > 1 and sum(map(len, spans.values())) > MAX_BARS:
        steps = steps[1:]
        spans = {r.rank: spans_of(r, steps) for r in ranks}
    spans = {rank: s for rank, s in spans.items() if s}
    kept, left_out = _longest(spans)
    start = min(s.start_seconds for rank in spans.values() for s in rank)
    # an asynchronous save may outlast its step by far: it does not set the scale
    lasting = [s for r in spans.values() for s in r if s.lane != "save"]
    end = max(s.end_seconds for s in lasting or [s for r in spans.values() for s in r])
    width = max(end - start, 1e-9)
    bars, rows, height = _layout(kept, start, width)
    return Timeline(
        steps=tuple(steps),
        height=height,
        rows=tuple(rows),
        bars=tuple(bars),
        x_ticks=tuple(
            Tick(100 * x / width, seconds(x) if x else "0")
            for x in nice_ticks(0.0, width, 6)
        ),
        step_marks=tuple(_step_marks(spans, steps, start, width)),
        shares=tuple(_shares(rank, s, len(steps), end) for rank, s in spans.items()),
        left_out=left_out,
        num_ranks=run.num_ranks,
        description=_description(steps, sorted(spans), width),
    )


def _description(steps: Sequence[int], ranks: Sequence[int], width: float) -> str:
    which = (
        f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    )
    return (
        f"Timeline of {which} on {len(ranks)} "
        f"rank{'s' if len(ranks) > 1 else ''}, {seconds(width)} in all"
    )


def _last_in_a_row(steps: Sequence[int]) -> list[int]:
    found: list[int] = []
    for step in reversed(steps):
        if len(found) == MAX_STEPS or (found and step != found[0] - 1):
            break
        found.insert(0, step)
    return found


def _longest(spans: dict[int, list[Span]]) -> tuple[dict[int, list[Span]], int]:
    """The MAX_BARS longest spans, and how many are left out."""
    total = sum(map(len, spans.values()))
    if total <= MAX_BARS:
        return spans, 0
    shortest_first = sorted(s.seconds for rank in spans.values() for s in rank)
    least = shortest_first[total - MAX_BARS]
    kept = {r: [s for s in all_ if s.seconds >= least] for r, all_ in spans.items()}
    return kept, total - sum(map(len, kept.values()))


def _layout(
    spans: dict[int, list[Span]], start: float, width: float
) -> tuple[list[Bar], list[Row], int]:
    """Stack the ranks' lanes downwards; spans at once in a lane get tracks of it."""
    bars: list[Bar] = []
    rows: list[Row] = []
    y = TOP
    for rank, all_ in spans.items():
        name = f"rank {rank}"
        for lane in LANES:
            tracks = pack([s for s in all_ if s.lane == lane])
            if not tracks:
                continue
            one = ROW if len(tracks) == 1 else TRACK
            rows.append(Row(name, lane, y, one * len(tracks)))
            name = ""
            for i, track in enumerate(tracks):
                for span in track:
                    bars.append(_bar(span, y + i * one, one - 2, start, width))
            y += one * len(tracks) + GAP
        y += RANK_GAP
    return bars, rows, y - RANK_GAP


def pack(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in as few tracks as hold them without overlap.

    With more than MAX_TRACKS at once, some overlap in the track that ends first.
    """
    tracks: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: s.start_seconds):
        free = (t for t in tracks if t[-1].end_seconds <= span.start_seconds + 1e-9)
        track = next(free, None)
        if track is not None:
            track.append(span)
        elif len(tracks) < MAX_TRACKS:
            tracks.append([span])
        else:
            min(tracks, key=lambda t: t[-1].end_seconds).append(span)
    return tracks


def _bar(span: Span, y: int, height: int, start: float, width: float) -> Bar:
    x = 100 * (span.start_seconds - start) / width
    wide = min(100 * span.seconds / width, 100 - x)
    title = f"{span.name}, step {span.step}: {seconds(span.seconds)}"
    if span.sent_bytes == span.sent_bytes:
        title += (
            f", sent {bytes_(span.sent_bytes)}, received {bytes_(span.received_bytes)}"
        )
    if span.waited_seconds == span.waited_seconds:
        title += f", waited {seconds(span.waited_seconds)}"
    text = _fitting(span.name, wide)
    return Bar(
        round(x, 3), round(max(wide, 0.05), 3), y, height, span.lane, text, title
    )


def _fitting(name: str, wide: float) -> str:
    """The name, or the name of its block alone, or nothing: what fits in the bar."""
    room = (wide * _PIXELS_PER_PERCENT - _TEXT_MARGIN) / _PIXELS_PER_CHARACTER
    for text in (name, name.removesuffix(".forward").removesuffix(".backward")):
        if len(text) <= room:
            return text
    return ""


def _step_marks(
    spans: dict[int, list[Span]], steps: Sequence[int], start: float, width: float
) -> Iterable[Tick]:
    for step in steps:
        starts = [s.start_seconds for r in spans.values() for s in r if s.step == step]
        yield Tick(round(100 * (min(starts) - start) / width, 3), f"step {step}")


def _shares(rank: int, spans: Sequence[Span], num_steps: int, end: float) -> Shares:
    start = min(s.start_seconds for s in spans)
    end = min(end, max(s.end_seconds for s in spans))
    total = max(end - start, 1e-9)
    by_lane = {
        lane: union(
            (s.start_seconds, min(s.end_seconds, end)) for s in spans if s.lane == lane
        )
        for lane in LANES
    }
    exposed = _exposed([s for s in spans if s.lane == "move"], by_lane)
    moving = length(by_lane["move"])
    covered = exposed
    found = {"move": length(exposed) / total}
    for lane in ("compute", "update", "load", "save"):
        found[lane] = length(subtract(by_lane[lane], covered)) / total
        covered = union([*covered, *by_lane[lane]])
    parts = [(lane, found[lane]) for lane in _SHOWN if by_lane[lane]]
    parts.append(("idle", max(0.0, 1 - sum(share for _, share in parts))))
    hidden = 1 - length(exposed) / moving if moving else None
    return Shares(rank, tuple(parts), total / num_steps, hidden)


def _exposed(moves: Sequence[Span], by_lane: Mapping[str, Intervals]) -> Intervals:
    """When the rank stood still for a move."""
    told = [m for m in moves if math.isfinite(m.waited_seconds)]
    untold = [m for m in moves if not math.isfinite(m.waited_seconds)]
    busy = union(i for lane in LANES if lane != "move" for i in by_lane[lane])
    waits = [
        (max(m.start_seconds, m.end_seconds - m.waited_seconds), m.end_seconds)
        for m in told
    ]
    rest = union((m.start_seconds, m.end_seconds) for m in untold)
    return union([*waits, *subtract(rest, busy)])


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The same points in as few intervals as possible, in order."""
    merged: Intervals = []
    for low, high in sorted(intervals):
        if high <= low:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def subtract(whole: Intervals, taken: Intervals) -> Intervals:
    """The points of `whole` (a union) that are not in `taken` (a union)."""
    left: Intervals = []
    for low, high in whole:
        for cut_low, cut_high in taken:
            if cut_high <= low or cut_low >= high:
                continue
            if cut_low > low:
                left.append((low, cut_low))
            low = max(low, cut_high)
        if low < high:
            left.append((low, high))
    return left


def length(intervals: Intervals) -> float:
    """The sum of their lengths."""
    return sum(high - low for low, high in intervals)


def say_hidden(shares: Sequence[Shares]) -> str:
    """How much of the moves' time is hidden behind compute, in a sentence."""
    hidden = [s.hidden for s in shares if s.hidden is not None]
    if not hidden:
        return ""
    low, high = percent(min(hidden)), percent(max(hidden))
    span = low if low == high else f"{low} to {high}"
    return f"{span} of the time in moves is hidden behind other work"
