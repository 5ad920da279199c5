"""Curves over the steps: from any number of points to a small sharp drawing.

Lines are paths in a 1000 x 1000 box that the page stretches (the stroke keeps its
width); ticks are percentages, so their text is never scaled. Long runs are reduced to
the least and the largest value of each of `NUM_BUCKETS` buckets: spikes stay visible,
and 10,000 steps take no more room than 600.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placet.job.report_format import number

Array = npt.NDArray[np.float64]

NUM_BUCKETS = 300
MAX_BREAKS = 20
BOX = 1000


@dataclass(frozen=True)
class Series:
    """Values at steps, to be drawn as one line.

    Args:
        label: for the legend.
        style: the CSS class of its colour.
        steps, values: of equal length; a value that is not finite breaks the line.
        smooth: draw the points faintly and their moving mean over them.
        dots: mark each point (few points only).
    """

    label: str
    style: str
    steps: Sequence[float]
    values: Sequence[float]
    smooth: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, in percent from the left or the top, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """One drawn line: SVG path data in the box, and dots in percent."""

    label: str
    style: str
    path: str
    faint_path: str
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Chart:
    """All a template needs to draw one chart."""

    title: str
    note: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    breaks: tuple[Tick, ...]
    readout: str
    description: str


def draw(
    title: str,
    series: Sequence[Series],
    *,
    x_range: tuple[float, float],
    note: str = "",
    from_zero: bool = False,
    show: Callable[[float], str] = number,
) -> Chart | None:
    """Draw series that share their axes, or None if no value is finite.

    Args:
        title, note: what is drawn.
        series: the lines.
        x_range: the first and the last step of the axis, the same for all charts.
        from_zero: let the other axis start at 0.
        show: how its values are written.
    """
    series = [s for s in series if _finite(s)[0].size]
    if not series:
        return None
    values = np.concatenate([_finite(s)[1] for s in series])
    x_low, x_high = _padded(*x_range, 0.0)
    low = 0.0 if from_zero and values.min() >= 0 else float(values.min())
    y_low, y_high = _padded(low, float(values.max()), 0.06, keep_low=from_zero)

    def place_x(step: float) -> float:
        return (step - x_low) / (x_high - x_low)

    def place_y(value: float) -> float:
        return 1 - (value - y_low) / (y_high - y_low)

    return Chart(
        title=title,
        note=note,
        lines=tuple(_line(s, place_x, place_y, show) for s in series),
        x_ticks=tuple(
            Tick(100 * place_x(x), number(x, 6))
            for x in nice_ticks(x_low, x_high, 5, whole=True)
        ),
        y_ticks=tuple(
            Tick(100 * place_y(y), show(y)) for y in nice_ticks(y_low, y_high, 4)
        ),
        breaks=tuple(
            Tick(100 * min(1.0, max(0.0, place_x(step))), number(step, 6))
            for step in _breaks(series)
        ),
        readout=_readout(series, place_x, show),
        description=_description(title, series, show),
    )


def nice_ticks(
    low: float, high: float, about: int, *, whole: bool = False
) -> list[float]:
    """About `about` round numbers (1, 2 or 5 times a power of ten) in [low, high].

    >>> nice_ticks(0.0, 10.0, 5)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    gaps = [power * m for m in (1, 2, 5, 10)]
    gap = min(gaps, key=lambda gap: abs(math.log(rough / gap)))
    if whole:
        gap = max(1.0, gap)
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    return [i * gap for i in range(first, last + 1)]


def _padded(
    low: float, high: float, share: float, *, keep_low: bool = False
) -> tuple[float, float]:
    """A range that is never empty, widened by `share` at both ends."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        half = abs(high) * 0.5 or 0.5
        low, high = (low, high + half) if keep_low else (low - half, high + half)
    room = share * (high - low)
    return (low if keep_low else low - room), high + room


def _finite(series: Series) -> tuple[Array, Array]:
    steps = np.asarray(series.steps, dtype=np.float64)
    values = np.asarray(series.values, dtype=np.float64)
    good = np.isfinite(steps) & np.isfinite(values)
    return steps[good], values[good]


def _breaks(series: Sequence[Series]) -> list[float]:
    """The first few steps at which a smooth series became infinite or NaN."""
    steps: list[float] = []
    for s in series:
        good = True
        for step, value in zip(s.steps, s.values, strict=True):
            was_good, good = good, math.isfinite(value)
            if s.smooth and was_good and not good:
                steps.append(step)
    return steps[:MAX_BREAKS]


def _line(
    series: Series,
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
    show: Callable[[float], str],
) -> Line:
    steps, values = _finite(series)

    def path(pieces: Sequence[tuple[Array, Array]]) -> str:
        parts = []
        for xs, ys in pieces:
            points = [
                f"{BOX * place_x(x):.1f} {BOX * place_y(y):.1f}"
                for x, y in zip(xs.tolist(), ys.tolist(), strict=True)
            ]
            # a single point is drawn as a stroke of no length: a round cap shows it
            parts.append("M" + "L".join(points if len(points) > 1 else points * 2))
        return "".join(parts)

    raw = path([extremes(x, y) for x, y in _pieces(series)])
    dots = [
        (100 * place_x(x), 100 * place_y(y), f"step {number(x, 6)}: {show(y)}")
        for x, y in zip(steps.tolist(), values.tolist(), strict=True)
    ]
    if not series.smooth or steps.size < 40:
        kept = tuple(dots) if series.dots and len(dots) <= 80 else ()
        return Line(series.label, series.style, raw, "", kept)
    mean = path([means(x, moving_mean(y)) for x, y in _pieces(series)])
    return Line(series.label, series.style, mean, raw, ())


def _pieces(series: Series) -> list[tuple[Array, Array]]:
    """The runs of finite values between values that are not."""
    steps = np.asarray(series.steps, dtype=np.float64)
    values = np.asarray(series.values, dtype=np.float64)
    good = np.isfinite(values)
    edges = np.flatnonzero(np.diff(good.astype(np.int8))) + 1
    pieces = zip(np.split(steps, edges), np.split(values, edges), strict=True)
    return [(x, y) for x, y in pieces if y.size and np.isfinite(y[0])]


def extremes(steps: Array, values: Array) -> tuple[Array, Array]:
    """The least and the largest value of each bucket, in order of step."""
    if steps.size <= 2 * NUM_BUCKETS:
        return steps, values
    keep: set[int] = {0, steps.size - 1}
    for bucket in np.array_split(np.arange(steps.size), NUM_BUCKETS):
        keep.add(int(bucket[values[bucket].argmin()]))
        keep.add(int(bucket[values[bucket].argmax()]))
    index = np.array(sorted(keep))
    return steps[index], values[index]


def means(steps: Array, values: Array) -> tuple[Array, Array]:
    """The mean of each bucket."""
    if steps.size <= NUM_BUCKETS:
        return steps, values
    buckets = np.array_split(np.arange(steps.size), NUM_BUCKETS)
    return (
        np.array([steps[b].mean() for b in buckets]),
        np.array([values[b].mean() for b in buckets]),
    )


def moving_mean(values: Array) -> Array:
    """The centred mean over about a fortieth of the values, narrower at the ends.

    Each point is centred in its own window, so the mean does not lag, and the first
    and the last value stay what they are.
    """
    if values.size < 3:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(values.size)
    half = np.minimum(max(1, values.size // 80), np.minimum(index, index[::-1]))
    window: Array = (sums[index + half + 1] - sums[index - half]) / (2 * half + 1)
    return window


def _readout(
    series: Sequence[Series],
    place_x: Callable[[float], float],
    show: Callable[[float], str],
) -> str:
    """JSON for the pointer: [[label, [[x in 1/1000, step, value], ...]], ...]."""
    lines = []
    for s in series:
        steps, values = means(*_finite(s))
        points = [
            [round(BOX * place_x(x)), number(round(x), 6), show(y)]
            for x, y in zip(steps.tolist(), values.tolist(), strict=True)
        ]
        lines.append([s.label, points])
    return json.dumps(lines, separators=(",", ":"), ensure_ascii=False)


def _description(
    title: str, series: Sequence[Series], show: Callable[[float], str]
) -> str:
    """The chart in words, for those who cannot see it."""
    parts = []
    for s in series:
        steps, values = _finite(s)
        parts.append(
            f"{s.label} goes from {show(float(values[0]))} at step "
            f"{number(float(steps[0]), 6)} to {show(float(values[-1]))} at step "
            f"{number(float(steps[-1]), 6)}"
        )
    return f"{title}: {'; '.join(parts)}"
