"""The engine between real processes: a wire as the others are, but for what it adds."""

import pytest

from placet.wire.interface import Wire
from testing.ranks import run_ranks
from tests.wire.conformance import (
    CHECKS,
    check_late,
    check_lost,
    check_mismatch,
    check_moves,
    submit_in_two_orders,
)

pytestmark = pytest.mark.procs


def all_checks(wire: Wire) -> None:
    """What every wire does; one start of processes for all."""
    for check in CHECKS:
        check(wire, "cpu")


@pytest.mark.parametrize("carrier", ["native", "plain"])
def test_engine_conforms(carrier):
    run_ranks(3, all_checks, carrier=carrier)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_engine_moves_on_any_number_of_ranks(num_ranks):
    run_ranks(num_ranks, check_moves, "cpu", carrier="native")


def test_engine_takes_any_order():
    found = run_ranks(3, submit_in_two_orders, "cpu", carrier="native")
    assert found == ["no error"] * 3


def test_engine_late_rank_is_named():
    first, _, third = run_ranks(
        3, check_late, "cpu", wire_timeout=1, timeout=40, carrier="native"
    )
    for found in (first, third):
        assert found.startswith("WireTimeout")
        assert "'late'" in found
        assert "rank 1" in found


def test_engine_lost_rank_is_the_first_failure():
    with pytest.raises(KeyError, match="stops here") as caught:
        run_ranks(3, check_lost, "cpu", carrier="native")
    assert "rank 0 (PeerLost), rank 2 (PeerLost)" in caught.value.__notes__[0]


def test_engine_mismatch_reaches_all():
    for found in run_ranks(3, check_mismatch, "cpu", carrier="native"):
        assert found.startswith("MoveMismatch")
        assert "grads.3" in found
