"""Faults happen to their rank, at their step, and to no other."""

import threading

import pytest
import torch

from placet.boxing.moves import AllReduce
from placet.errors import PeerLost, WireTimeout
from testing.failures import RankDied
from testing.faults import Crash, InjectedFault, Raise, Stall, inject
from testing.ranks import run_ranks, run_threads


def train(wire, faults, steps=5):
    observe = inject(faults, wire.rank)
    group = tuple(range(wire.num_ranks))
    for step in range(steps):
        observe(step)
        move = AllReduce(group, 1, torch.float64)
        one = torch.ones(1, dtype=torch.float64)
        try:
            wire.submit(move, one, key=f"step {step}").wait()
        except (PeerLost, WireTimeout):
            return step
    return steps


def test_faults_none():
    assert run_threads(2, train, []) == [5, 5]


def test_faults_raise_at_its_rank_and_step():
    with pytest.raises(InjectedFault, match=r"Raise\(rank=1, step=3\)") as caught:
        run_threads(2, train, [Raise(rank=1, step=3), Raise(rank=0, step=99)])
    assert caught.value.__notes__[0].startswith("rank 1 of 2 failed first")


def test_faults_stall_until_released():
    released = threading.Event()
    faults = [Stall(rank=0, step=2, released=released)]
    steps = []

    def run(wire):
        steps.append(train(wire, faults))
        released.set()

    run_threads(2, run, wire_timeout=0.05)
    assert steps == [2, 2]


@pytest.mark.procs
def test_faults_crash_kills_the_process():
    assert run_ranks(2, train, [Crash(rank=1, step=3)], expect_death=[1]) == [3, None]


@pytest.mark.procs
def test_faults_stall_for_ever_is_ended_by_the_harness():
    with pytest.raises(RankDied, match="still running"):
        run_ranks(2, train, [Stall(1, 0)], timeout=4, wire_timeout=1)
