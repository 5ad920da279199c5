"""What the report draws: curves, the timeline, and numbers as text."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from placet.job import report_format as show
from placet.job.report_curves import (
    Series,
    draw,
    extremes,
    means,
    moving_mean,
    nice_ticks,
)
from placet.job.report_events import Span, read_run
from placet.job.report_timeline import draw as draw_timeline
from placet.job.report_timeline import length, pack, subtract, union
from testing.synthetic_run import write_run


def test_report_timeline_rows_and_shares(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", num_ranks=2, recorded=(3, 9, 10, 11)))
    drawn = draw_timeline(run)
    assert drawn is not None
    assert drawn.steps == (10, 11)  # the last that follow one another
    assert [row.lane for row in drawn.rows] == ["compute", "move", "update", "load"] * 2
    assert [row.rank for row in drawn.rows if row.rank] == ["rank 0", "rank 1"]
    assert len(drawn.bars) == sum(
        s.step in (10, 11) for r in run.ranks for s in (*r.nodes, *r.moves)
    )
    assert all(bar.x >= 0 and bar.x + bar.width <= 100.06 for bar in drawn.bars)
    assert all(bar.y > 0 and bar.y + bar.height <= drawn.height for bar in drawn.bars)
    for shares in drawn.shares:
        assert sum(share for _, share in shares.parts) == pytest.approx(1)
        assert 0 < shares.hidden < 1


def test_report_timeline_moves_are_exposed_as_far_as_waited_for(tmp_path: Path) -> None:
    events = [
        {"kind": "start", "num_ranks": 1},
        {
            "kind": "node",
            "step": 1,
            "name": "a",
            "lane": "compute",
            "start": 0,
            "end": 8,
        },
        {"kind": "boxing", "step": 1, "name": "m", "start": 2, "end": 6, "waited": 1},
        {"kind": "boxing", "step": 1, "name": "n", "start": 7, "end": 10},
    ]
    text = "\n".join(map(json.dumps, events))
    (tmp_path / "events-rank0.jsonl").write_text(text)
    drawn = draw_timeline(read_run(tmp_path))
    assert drawn is not None
    (shares,) = drawn.shares
    # m is waited for in 5..6; how long n was is not told, and 8..10 holds no node
    assert dict(shares.parts) == pytest.approx({"compute": 0.7, "move": 0.3, "idle": 0})
    assert shares.hidden == pytest.approx(1 - 3 / 7)


def test_report_ranks_are_on_one_clock(tmp_path: Path) -> None:
    for rank, late in ((0, 0.0), (1, 0.25), (2, 86_400.0)):
        events = [
            {"kind": "start", "num_ranks": 3, "time_unix": 1.75e9 + late},
            {"kind": "node", "step": 1, "name": "a", "start": 1.0, "end": 2.0},
        ]
        text = "\n".join(map(json.dumps, events))
        (tmp_path / f"events-rank{rank}.jsonl").write_text(text)
    starts = [r.nodes[0].start_seconds for r in read_run(tmp_path).ranks]
    assert starts == [1.0, 1.25, 1.0]


def test_report_timeline_caps_its_bars(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=2, recorded=(3, 4))
    path = folder / "events-rank0.jsonl"
    many = [
        {"kind": "node", "step": 4, "name": f"op{i}", "lane": "compute"}
        | {"start": 1.6 + i * 1e-5, "end": 1.6 + i * 1e-5 + (1 + i) * 1e-9}
        for i in range(4000)
    ]
    path.write_text(path.read_text() + "\n".join(json.dumps(e) for e in many))
    drawn = draw_timeline(read_run(folder))
    assert drawn is not None
    assert drawn.steps == (4,)
    assert 0 < len(drawn.bars) <= 2500
    assert drawn.left_out == 4000 + 2 * 26 - len(drawn.bars)


def test_report_timeline_intervals() -> None:
    whole = union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (4.0, 4.0)])
    assert whole == [(0.0, 3.0), (5.0, 6.0)]
    assert subtract(whole, [(1.0, 2.0), (2.5, 5.5)]) == [
        (0.0, 1.0),
        (2.0, 2.5),
        (5.5, 6.0),
    ]
    assert subtract(whole, [(0.0, 9.0)]) == []
    assert length(whole) == 4.0


def test_report_timeline_tracks_do_not_overlap() -> None:
    spans = [Span(1, str(i), "move", i * 0.4, i * 0.4 + 1.0) for i in range(9)]
    tracks = pack(spans)
    assert len(tracks) == 3
    assert sorted(s.name for t in tracks for s in t) == [str(i) for i in range(9)]
    for track in tracks:
        ends = [s.end_seconds for s in track[:-1]]
        assert all(
            e <= s.start_seconds + 1e-9 for e, s in zip(ends, track[1:], strict=True)
        )


def test_report_curves_keep_spikes_and_break_at_nan() -> None:
    steps = np.arange(10_000, dtype=np.float64)
    values = np.ones(10_000)
    values[1234] = 9.0
    kept_steps, kept = extremes(steps, values)
    assert kept.size <= 602
    assert 1234 in kept_steps
    assert kept.max() == 9.0
    assert means(steps, values)[1].size == 300
    line = values.tolist()
    line[5000] = math.nan
    chart = draw("x", [Series("x", "a", steps.tolist(), line)], x_range=(0, 9999))
    assert chart is not None
    assert chart.lines[0].path.count("M") == 2
    assert "nan" not in chart.lines[0].path
    nothing = Series("x", "a", [1, 2], [math.nan, math.inf])
    assert draw("x", [nothing], x_range=(1, 2)) is None
    flat = draw("x", [Series("x", "a", [1], [0.0])], x_range=(1, 1), from_zero=True)
    assert flat is not None


def test_report_moving_mean_of_a_line_is_the_line() -> None:
    line = np.linspace(3.0, -1.0, 500)
    np.testing.assert_allclose(moving_mean(line), line, atol=1e-12)
    noisy = line + np.where(np.arange(500) % 2, 0.5, -0.5)
    assert np.abs(moving_mean(noisy) - line)[20:-20].max() < 0.1


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 10.0, [0, 2, 4, 6, 8, 10]), (1.2, 5.5, [2, 3, 4, 5]), (0, 3e-4, 4)],
)
def test_report_ticks_are_round(
    low: float, high: float, ticks: list[float] | int
) -> None:
    found = nice_ticks(low, high, 4 if low or high < 1 else 5)
    if isinstance(ticks, int):
        assert len(found) == ticks
    else:
        assert found == pytest.approx(ticks)


def test_report_numbers_read_well() -> None:
    assert [show.number(x) for x in (1.89354, 12345.6, 3.12e-4, 0, -2.5)] == [
        "1.894",
        "12,346",
        "0.000312",
        "0",
        "−2.5",
    ]
    assert [show.number(x) for x in (math.nan, math.inf, 1e-7, 2.5e12)] == [
        "–",
        "∞",
        "1e−7",
        "2.5e12",
    ]
    assert [show.bytes_(x) for x in (0, 1023, 1536, 4 * 2**20, 2.5 * 2**30)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "4 MiB",
        "2.5 GiB",
    ]
    assert [show.seconds(x) for x in (3.1e-4, 0.0481, 1.24, 192, 7380, math.nan)] == [
        "310 µs",
        "48.1 ms",
        "1.24 s",
        "3 min 12 s",
        "2 h 03 min",
        "–",
    ]
    assert [show.percent(x) for x in (0.1234, 0.0123, 1.3)] == ["12%", "1.2%", "130%"]
    assert [show.count(x) for x in (8192, 25_000_000, 12)] == ["8.19 k", "25 M", "12"]
