"""c10d on gloo is a wire, and fails as the twin does."""

import os
import signal

import pytest
import torch

from placet.boxing.moves import AllReduce, AllToAll, ReduceScatter
from placet.errors import PeerLost, WireTimeout
from placet.wire.c10d import C10dWire
from testing.ranks import run_ranks, run_threads
from tests.wire.conformance import (
    CHECKS,
    check_late,
    check_lost,
    check_mismatch,
    check_moves,
    payload_of,
    submit_in_two_orders,
)

pytestmark = pytest.mark.procs


def all_checks(wire):
    """One start of processes for all."""
    for check in CHECKS:
        check(wire, "cpu")


def test_gloo_conforms():
    run_ranks(3, all_checks)


@pytest.mark.parametrize("num_ranks", [1, 2, pytest.param(4, marks=pytest.mark.prove)])
def test_gloo_moves_on_any_number_of_ranks(num_ranks):
    run_ranks(num_ranks, check_moves, "cpu")


def test_gloo_moves_with_the_order_checked():
    run_ranks(3, check_moves, "cpu", check_order=True)


def test_gloo_late_rank_is_named():
    first, _, third = run_ranks(3, check_late, "cpu", wire_timeout=1, timeout=40)
    for found in (first, third):
        assert found.startswith("WireTimeout key 'late' (AllReduce of torch.float32")
        assert "submitted by ranks 0, 2; not by rank 1, silent for 1 s" in found


def test_gloo_lost_rank_is_the_first_failure():
    with pytest.raises(KeyError, match="stops here") as caught:
        run_ranks(3, check_lost, "cpu")
    assert "rank 0 (PeerLost), rank 2 (PeerLost)" in caught.value.__notes__[0]


def test_gloo_mismatch_reaches_all():
    for found in run_ranks(3, check_mismatch, "cpu", check_order=True):
        assert found.startswith("MoveMismatch ranks disagree on different moves")
        assert "num_elements=4" in found
        assert "num_elements=5" in found


def test_gloo_wrong_order_reaches_all():
    for found in run_ranks(3, submit_in_two_orders, "cpu", check_order=True):
        assert found.startswith("MoveMismatch ranks disagree on an order: submission 1")


def wait_crosswise(wire):
    """Rank 0 waits for (0, 1); rank 1 for (1, 2), where nobody comes."""
    wire.prepare([(0, 1), (1, 2)])
    wire.timeout_seconds = 20
    group = (0, 1) if wire.rank == 0 else (1, 2)
    found = ""
    if wire.rank < 2:
        move = AllReduce(group, 4, torch.float32)
        future = wire.submit(move, torch.ones(4), key=f"of rank {wire.rank}")
        with pytest.raises(WireTimeout) as caught:
            future.wait()
        found = str(caught.value)
        with pytest.raises(WireTimeout, match="this group failed before"):
            wire.submit(move, torch.ones(4), key="next")
    wire.exchange(b"", key="end")
    return found


def test_gloo_timeout_tells_what_the_others_wait_for():
    first, second, _ = run_ranks(3, wait_crosswise, wire_timeout=1, timeout=40)
    assert "not by rank 1, which waited for 'of rank 1'" in first
    assert "submitted by ranks 1; not by rank 2, silent" in second


def prepare_without_rank_1(wire):
    wire.timeout_seconds = 20 if wire.rank == 1 else 1
    if wire.rank != 1:
        with pytest.raises(WireTimeout, match=r"make group \(0, 1, 2\)|not all"):
            wire.prepare([(2, 1, 0)])
        with pytest.raises(WireTimeout, match="nothing from rank 1"):
            wire.exchange(b"", key="never")
    wire.timeout_seconds = 20
    wire.exchange(b"", key="end")


def test_gloo_group_and_exchange_have_deadlines():
    run_ranks(3, prepare_without_rank_1, timeout=40)


def die_between(wire, victim):
    move = AllToAll((0, 1, 2), ((0, 0, 0), (0, 0, 0), (9, 0, 0)), torch.float32)
    payload = payload_of(move, wire.rank, "cpu")
    wire.submit(move, payload, key="pairs").wait()
    if wire.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        future = wire.submit(move, payload, key="pairs again")
        future.wait()
    except PeerLost as error:
        return str(error)
    return "no error"


def test_gloo_death_is_felt_by_pairs_and_by_them_alone():
    first, second, third = run_ranks(3, die_between, 2, expect_death=[2])
    assert "key 'pairs again'" in first
    assert "rank 2 is gone" in first
    assert second == "no error"
    assert third is None


def sums_of(wire, dtype):
    generator = torch.Generator().manual_seed(wire.rank)
    group = tuple(range(wire.num_ranks))
    terms = torch.randn(1501, generator=generator).to(dtype)
    counts = tuple(range(1501 // 3 - 1, 1501 // 3 + 2))
    assert sum(counts) == 1500
    return [
        wire.submit(AllReduce(group, 1501, dtype), terms, key="a").wait(),
        wire.submit(ReduceScatter(group, counts, dtype), terms[1:], key="b").wait(),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gloo_and_the_twin_give_the_same_bits(dtype):
    real = run_ranks(3, sums_of, dtype)
    twin = run_threads(3, sums_of, dtype)
    for on_gloo, on_twin in zip(real, twin, strict=True):
        for a, b in zip(on_gloo, on_twin, strict=True):
            assert torch.equal(a, b)
        assert torch.equal(on_gloo[0], real[0][0])


def test_wire_needs_a_process_group():
    with pytest.raises(ValueError, match="call torch"):
        C10dWire()
