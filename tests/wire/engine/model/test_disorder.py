"""How often slightly different orders hang an in-order queue; never ours."""

import random

import pytest

from bench.disorder import DISORDERS, NUM_COLLECTIVES, formula_row, hung_row
from testing.wire_model.disorder import (
    Cell,
    Counted,
    count,
    expected,
    grid,
    one_group,
    skipping,
    syncing,
)


@pytest.mark.parametrize(
    ("num_ranks", "percent"),
    [(8, (0.7, 8.2, 52.8, 100.0)), (64, (7.7, 46.7, 99.7, 100.0))],
)
def test_formula_fits_the_earlier_count(num_ranks, percent):
    for disorder, counted in zip(DISORDERS, percent, strict=True):
        share = 100 * expected(num_ranks, NUM_COLLECTIVES, disorder)
        assert share == pytest.approx(counted, abs=3.0)


def test_a_queue_hangs_as_often_as_the_formula_says():
    for disorder in (1e-3, 1e-2):
        counted = count(
            Cell("one queue", one_group(8, NUM_COLLECTIVES), 8, disorder), 200
        )
        assert counted.ours_hung == 0
        assert formula_row("", counted, expected(8, NUM_COLLECTIVES, disorder)).passes


def test_syncs_hang_streams_less_than_a_queue():
    groups = one_group(8, NUM_COLLECTIVES)
    queue = count(Cell("one queue", groups, 8, 1e-3), 200)
    streams = count(Cell("streams with syncs", groups, 8, 1e-2), 200)
    assert 0 < streams.hung < queue.hung
    assert streams.ours_hung == 0


def test_without_disorder_nothing_hangs():
    for mode in ("one queue", "streams with syncs"):
        assert count(Cell(mode, grid(8, 2, 20), 8, 0.0), 20).hung == 0


def test_skipping_takes_the_next_or_one_further():
    rng = random.Random(0)
    assert skipping(rng, [3, 4, 5], 0.0) == [3, 4, 5]
    orders = {tuple(skipping(rng, [3, 4, 5], 0.5)) for _ in range(200)}
    assert len(orders) == 6


def test_syncs_wait_for_all_that_is_submitted():
    assert syncing(random.Random(0), [2, 0], 1.0) == (2, ~2, 0, ~0)


def test_grid_has_each_rank_in_each_collective_once():
    groups = grid(8, 2, 4)
    assert sorted(rank for group in groups for rank in group) == sorted([*range(8)] * 4)
    assert groups[0] == (0, 1)
    assert (0, 2, 4, 6) in groups


def test_rows_fail_where_ours_hangs_or_the_queue_is_off():
    assert hung_row("", Counted(100, 50, 0)).passes
    assert not hung_row("", Counted(100, 50, 1)).passes
    assert not hung_row("", Counted(100, 0, 1)).passes
    assert not formula_row("", Counted(1000, 500, 0), 0.3).passes
