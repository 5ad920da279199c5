"""Ratios, their intervals and what they say about a target."""

import numpy as np
import pytest

from bench.ratios import Ratio, Row, exact_row, ratio, timed_row


def noisy(factor: float, num_pairs: int, seed: int) -> tuple[list[float], list[float]]:
    """Pairs whose true ratio is `factor`, on a machine whose mood drifts."""
    random = np.random.default_rng(seed)
    mood = 1 + 0.5 * np.sin(np.arange(num_pairs) / 20) ** 2
    ours = factor * mood * random.lognormal(0, 0.05, num_pairs)
    peer = mood * random.lognormal(0, 0.05, num_pairs)
    return list(ours), list(peer)


def test_ratio_covers_the_true_ratio_as_often_as_it_says():
    covered = 0
    for seed in range(60):
        found = ratio(*noisy(0.9, 300, seed))
        covered += found.low <= 0.9 <= found.high
        assert found.low <= found.value <= found.high
        assert found.high - found.low < 0.05
    assert covered >= 52  # 95% of 60 is 57; fewer than 52 has a chance below 1%


def test_ratio_interval_is_wider_when_neighbours_are_alike():
    random = np.random.default_rng(0)
    widths = np.zeros(2)
    for _ in range(10):
        single = random.lognormal(0, 0.1, 300)
        alike = np.repeat(random.lognormal(0, 0.1, 30), 10)
        found = [ratio(list(x), [1.0] * 300) for x in (single, alike)]
        widths += [f.high - f.low for f in found]
    assert widths[1] > 2 * widths[0]  # about the root of 10; 1 if drawn pair by pair


def test_ratio_is_paired_and_reproducible():
    peer = [1.0, 100.0, 10.0, 1000.0] * 5
    ours = [2 * x for x in peer]
    assert ratio(ours, peer) == Ratio(2.0, 2.0, 2.0)
    assert ratio([1.0], [4.0]) == Ratio(0.25, 0.25, 0.25)
    assert ratio(*noisy(1, 40, 0)) == ratio(*noisy(1, 40, 0))


@pytest.mark.parametrize(
    ("ours", "peer", "message"),
    [
        ([1.0], [1.0, 2.0], "got 1 and 2 measurements"),
        ([], [], "got 0 and 0 measurements"),
        ([1.0, 0.0], [1.0, 1.0], "values > 0, got 0.0"),
        ([1.0, 1.0], [1.0, -2.0], "values > 0, got -2.0"),
    ],
)
def test_ratio_refuses(ours: list[float], peer: list[float], message: str):
    with pytest.raises(ValueError, match=message):
        ratio(ours, peer)


@pytest.mark.parametrize(
    ("low", "high", "most", "verdict", "passes"),
    [
        (0.95, 0.99, 1.0, "met", True),
        (0.95, 1.0, 1.0, "met", True),
        (0.98, 1.02, 1.0, "allowed", True),
        (1.0, 1.02, 1.0, "allowed", True),
        (1.01, 1.02, 1.0, "missed", False),
        (0.90, 1.10, 1.0, "too noisy", False),
        (0.50, 0.80, 1.0, "met", True),
        (0.90, 1.10, None, "shown", True),
    ],
)
def test_verdict(low: float, high: float, most: float | None, verdict: str, passes):
    row = Row("x", "s", 1, 1, Ratio((low + high) / 2, low, high), most)
    assert row.verdict == verdict
    assert row.passes == passes


def test_exact_rows_have_no_interval():
    row = exact_row("bytes", 103, 100, unit="bytes", most=1.02)
    assert row.ratio == Ratio(1.03, 1.03, 1.03)
    assert row.verdict == "missed"
    with pytest.raises(ValueError, match="must be > 0, got 0"):
        exact_row("bytes", 1, 0, unit="bytes")


def test_timed_rows_show_medians():
    row = timed_row("step", [1.0, 2.0, 30.0], [2.0, 4.0, 60.0], most=0.6)
    assert (row.ours, row.peer, row.ratio.value) == (2.0, 4.0, 0.5)
    assert row.verdict == "met"
