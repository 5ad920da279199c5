"""The twin is a wire, and one that fails like a wire."""

import pytest
import torch

from placet.boxing.moves import AllReduce, BroadcastFrom
from placet.errors import MoveMismatch, PeerLost, WireError, WireTimeout
from placet.wire.twin import Twin, single
from testing.ranks import run_threads
from tests.wire.conformance import (
    CHECKS,
    check_in_flight,
    check_late,
    check_lost,
    check_mismatch,
    check_moves,
    payload_of,
    submit_in_two_orders,
)

PAIR = AllReduce((0, 1), 2, torch.float64)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_twin_conforms(check):
    run_threads(3, check, "cpu")


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 5])
def test_twin_moves_on_any_number_of_ranks(num_ranks):
    run_threads(num_ranks, check_moves, "cpu")
    run_threads(num_ranks, check_in_flight, "cpu")


def test_twin_late_rank_is_named():
    first, _, third = run_threads(3, check_late, "cpu", wire_timeout=0.2)
    for found in (first, third):
        assert found.startswith("WireTimeout key 'late' (AllReduce of torch.float32")
        assert "submitted by ranks 0, 2; not by rank 1" in found
        assert "submitted 'all timed out' last and waits on 'all timed out'" in found


def test_twin_lost_rank_is_the_first_failure():
    with pytest.raises(KeyError, match="stops here") as caught:
        run_threads(3, check_lost, "cpu")
    assert "rank 0 (PeerLost), rank 2 (PeerLost)" in caught.value.__notes__[0]


def test_twin_mismatch_reaches_all():
    for found in run_threads(3, check_mismatch, "cpu"):
        assert found.startswith("MoveMismatch key 'grads.3'")
        assert "num_elements=4" in found
        assert "num_elements=5" in found


def test_twin_is_order_free():
    assert Twin(1).wire(0).capabilities.order_free
    assert run_threads(3, submit_in_two_orders, "cpu") == ["no error"] * 3


def test_twin_in_one_thread():
    twin = Twin(2)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    first = twin.wire(0).submit(PAIR, x, key="k")
    assert not first.done()
    with pytest.raises(WireError, match="no traffic to report"):
        first.traffic()
    second = twin.wire(1).submit(PAIR, 10 * x, key="k")
    assert first.done()
    torch.testing.assert_close(second.wait(), 11 * x)
    torch.testing.assert_close(first.wait(), 11 * x)


def test_twin_deadline_names_a_rank_that_computes():
    twin = Twin(2, timeout_seconds=0.01)
    x = torch.ones(2, dtype=torch.float64)
    future = twin.wire(0).submit(PAIR, x, key="k")
    with pytest.raises(WireTimeout, match="submitted nothing so far and is computing"):
        future.wait()
    late = twin.wire(1).submit(PAIR, x, key="k")
    with pytest.raises(WireTimeout, match="not by rank 1"):
        late.wait()
    again = [twin.wire(rank).submit(PAIR, x, key="k") for rank in range(2)]
    torch.testing.assert_close(again[0].wait(), 2 * x)


def test_twin_lost_before_the_move_was_submitted():
    twin = Twin(3)
    twin.wire(1).close()
    x = torch.ones(2, dtype=torch.float64)
    future = twin.wire(0).submit(PAIR, x, key="k")
    with pytest.raises(PeerLost, match="rank 1 closed its wire"):
        future.wait()


def test_twin_different_groups_under_one_key():
    twin = Twin(3)
    x = torch.ones(2, dtype=torch.float64)
    first = twin.wire(0).submit(PAIR, x, key="k")
    second = twin.wire(1).submit(AllReduce((1, 2), 2, torch.float64), x, key="k")
    for future in (first, second):
        with pytest.raises(MoveMismatch, match=r"group=\(1, 2\)"):
            future.wait()


def test_twin_sums_alike_on_all_ranks():
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(5, 1001, generator=generator)
    group = tuple(range(5))
    move = AllReduce(group, 1001, torch.float32)
    results = run_threads(
        5, lambda wire: wire.submit(move, terms[wire.rank], key="k").wait()
    )
    assert all(torch.equal(results[0], result) for result in results)
    torch.testing.assert_close(results[0], terms.sum(0))


def test_twin_refuses_ranks_that_do_not_exist():
    with pytest.raises(ValueError, match="at least 1 rank"):
        Twin(0)
    with pytest.raises(ValueError, match="rank 2 is not one of the twin's 2"):
        Twin(2).wire(2)


def test_single_moves_nothing():
    wire = single()
    move = BroadcastFrom((0,), 0, 3, torch.int16)
    payload = payload_of(move, 0, "cpu")
    future = wire.submit(move, payload, key="k")
    assert torch.equal(future.wait(), payload)
    assert future.traffic().sent_bytes == 0
    assert wire.exchange(b"x", key="k") == [b"x"]
