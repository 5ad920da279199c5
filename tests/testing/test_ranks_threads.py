"""The harness must be right before what it tests can be."""

import threading

import pytest
import torch

from placet.boxing.moves import AllReduce
from placet.errors import PeerLost
from placet.wire.interface import Wire
from testing.failures import RankDied
from testing.ranks import run_threads


def total(wire: Wire, x: torch.Tensor) -> torch.Tensor:
    group = tuple(range(wire.num_ranks))
    move = AllReduce(group, x.numel(), x.dtype)
    return wire.submit(move, x * (wire.rank + 1), key="total").wait()


def test_threads_results_by_rank():
    assert run_threads(3, lambda wire: wire.rank * 10) == [0, 10, 20]


def test_threads_meet_on_the_wire():
    results = run_threads(3, total, torch.ones(4, dtype=torch.float64))
    for result in results:
        torch.testing.assert_close(result, torch.full((4,), 6.0, dtype=torch.float64))


def test_threads_keep_grad_mode():
    with torch.no_grad():
        assert run_threads(2, lambda wire: torch.is_grad_enabled()) == [False, False]
    assert run_threads(2, lambda wire: torch.is_grad_enabled()) == [True, True]


def test_threads_name_the_rank_that_failed_first():
    def fn(wire):
        if wire.rank == 1:
            raise KeyError("the cause")
        total(wire, torch.ones(1))

    with pytest.raises(KeyError, match="the cause") as caught:
        run_threads(3, fn)
    (note,) = caught.value.__notes__
    assert note.startswith("rank 1 of 3 failed first:")
    assert "rank 0 (PeerLost), rank 2 (PeerLost)" in note


def test_threads_a_rank_that_returns_early_is_lost():
    def fn(wire):
        if wire.rank == 0:
            total(wire, torch.ones(1))

    with pytest.raises(PeerLost, match="rank 1 returned and will submit nothing"):
        run_threads(2, fn)


def test_threads_report_the_stack_of_a_rank_that_hangs():
    forever = threading.Event()

    def sits_here(wire):
        if wire.rank == 1:
            forever.wait()

    try:
        with pytest.raises(RankDied, match=r"still running after 0\.05 s") as caught:
            run_threads(2, sits_here, timeout=0.05)
        assert "sits_here" in caught.value.__notes__[0]
    finally:
        forever.set()
