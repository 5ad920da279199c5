"""All interleavings of few ranks: the protocol has no deadlock, each mutant has one."""

import random
from dataclasses import replace
from typing import Any

import pytest

from testing.wire_model.cases import Case, has_cycle, wait
from testing.wire_model.explore import Explored, Safe, explore
from testing.wire_model.primitives import (
    NO_PREEMPTION,
    PROTOCOL,
    SEND_THEN_RECEIVE,
    SHARED_BUFFER,
    SHARED_CREDITS,
    Model,
    Protocol,
)
from testing.wire_model.products import all_cases
from testing.wire_model.rings import ring, small_rings

PAIR = ((0, 1),)
ONE = Case(PAIR, ((0, wait(0)),) * 2)
BOTH = Case(PAIR * 2, ((0, 1, wait(0)), (1, 0, wait(1))))
WAITING = Case(PAIR * 2, ((0, 1, wait(0)), (1, wait(1), 0)))
"""Rank 1 takes collective 1 first, and submits 0 only once 1 is done."""
CYCLE = Case(PAIR * 2, ((0, wait(0), 1), (1, wait(1), 0)))

MUTANTS = [
    pytest.param(SHARED_CREDITS, WAITING, id="shared credits"),
    pytest.param(SHARED_BUFFER, WAITING, id="shared buffer"),
    pytest.param(NO_PREEMPTION, BOTH, id="no preemption"),
    pytest.param(SEND_THEN_RECEIVE, BOTH, id="chunk > credits"),
]


def search(case: Case, protocol: Protocol = PROTOCOL, **options: Any) -> Explored:
    return explore(Model(case, small_rings(case), protocol), **options)


def search_one_step(
    case: Case, num_slices: int, protocol: Protocol, **options: Any
) -> Explored:
    """Every collective is one chunk of so many slices from each rank to the other."""
    schedules = {
        (rank, c): ring(group, rank, num_steps=1, step_bytes=num_slices)
        for c, group in enumerate(case.groups)
        for rank in group
    }
    return explore(Model(case, schedules, protocol), **options)


@pytest.mark.parametrize(("mutant", "case"), MUTANTS)
def test_each_mutant_deadlocks_where_the_protocol_does_not(mutant, case):
    assert not has_cycle(case)
    found = search_one_step(case, 2, mutant, stop_at_first=True)
    assert len(found.deadlocks) == 1
    assert found.trace
    assert not search_one_step(case, 2, PROTOCOL, safe="all").deadlocks


def test_set_aside_memory_for_all_would_do_and_grows():
    """Without READY nothing hangs only while all that is early can be set aside."""
    enough = search(WAITING, replace(SHARED_CREDITS, early=2))
    assert not enough.deadlocks
    assert search(WAITING, SHARED_CREDITS, stop_at_first=True).deadlocks


def test_a_chunk_may_be_what_channel_and_receiver_hold():
    """One slice in the channel and one set aside: sending first does with a chunk of
    2 and hangs with 3, though there is a single collective."""
    assert not search_one_step(ONE, 2, SEND_THEN_RECEIVE).deadlocks
    assert search_one_step(ONE, 3, SEND_THEN_RECEIVE).deadlocks
    assert not search_one_step(ONE, 3, replace(SEND_THEN_RECEIVE, channel=3)).deadlocks
    assert not search_one_step(ONE, 3, PROTOCOL).deadlocks


def test_a_trace_says_what_happened():
    trace = search_one_step(ONE, 3, SEND_THEN_RECEIVE).trace
    assert {"rank 0 submits 0", "rank 1 submits 0"} < set(trace)
    assert "0 to 1: a slice of 0" in trace


def test_what_nobody_submits_is_a_deadlock():
    found = search(Case(PAIR, ((0, wait(0)), ())))
    assert len(found.deadlocks) == 1


def test_mutants_have_no_safe_steps():
    with pytest.raises(ValueError, match="safe steps are those of PROTOCOL"):
        search(ONE, NO_PREEMPTION, safe="all")


@pytest.mark.parametrize("case", [ONE, WAITING, CYCLE])
def test_following_safe_steps_finds_the_same_ends(case):
    full = search(case)
    receives, safe = search(case, safe="receives"), search(case, safe="all")
    assert full.ends == receives.ends == safe.ends
    assert full.num_states > receives.num_states > safe.num_states
    assert bool(full.deadlocks) == has_cycle(case)


@pytest.mark.prove
def test_following_safe_steps_finds_the_same_ends_of_all_small_cases():
    num_cases = num_states = 0
    for size, number in ((2, 1), (2, 2), (3, 1)):
        for case in all_cases(size, number, waits=True):
            full, safe = search(case), search(case, safe="all")
            assert full.ends == safe.ends, case
            assert bool(full.deadlocks) == has_cycle(case)
            num_cases += 1
            num_states += full.num_states
    print(f"{num_cases} cases, {num_states} states of the full search: the same ends")


def check_all(cases: list[Case], safe: Safe = "all") -> None:
    """The protocol hangs in exactly the cases that no wire can finish."""
    num_states = num_cycles = most = 0
    for case in cases:
        found = search(case, safe=safe)
        cycle = has_cycle(case)
        assert bool(found.deadlocks) == cycle, (case, found.trace)
        assert cycle or len(found.ends) == 1
        num_cycles += cycle
        num_states += found.num_states
        most = max(most, found.num_states)
    print(
        f"{len(cases)} cases, {num_states} states, at most {most} in one:"
        f" {num_cycles} with a cycle of the application hang, no other does"
    )


@pytest.mark.parametrize(("num_ranks", "number"), [(2, 1), (2, 2), (2, 3), (3, 1)])
def test_every_order_of_few(num_ranks, number):
    check_all(list(all_cases(num_ranks, number, waits=number < 3)))


def test_a_sample_of_every_order_of_three_collectives_on_three_ranks():
    cases = list(all_cases(3, 3, waits=False))
    assert len(cases) == 114
    check_all(random.Random(3).sample(cases, 8))


@pytest.mark.prove
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("num_ranks", "number"), [(2, 3), (3, 2), (3, 3)])
def test_every_order(num_ranks, number, waits):
    check_all(list(all_cases(num_ranks, number, waits=waits)))


@pytest.mark.prove
@pytest.mark.parametrize(
    ("num_ranks", "number", "waits"), [(2, 3, False), (3, 2, True)]
)
def test_every_order_in_all_interleavings_of_sends(num_ranks, number, waits):
    check_all(list(all_cases(num_ranks, number, waits=waits)), safe="receives")


@pytest.mark.prove
@pytest.mark.parametrize(
    "rules", [replace(PROTOCOL, channel=2), replace(PROTOCOL, eager=2, early=2)]
)
def test_every_order_of_two_with_other_bounds(rules):
    num_states = 0
    for case in all_cases(2, 2, waits=True):
        found = search(case, rules)
        assert bool(found.deadlocks) == has_cycle(case)
        num_states += found.num_states
    print(f"{num_states} states, all interleavings, {rules}")


def test_products_come_once_by_name():
    assert len(list(all_cases(2, 2, waits=False))) == 2
    assert len(list(all_cases(3, 2, waits=True))) == 40


def test_ring_sends_what_it_received():
    instructions = ring((0, 1, 2), 1, num_steps=2, step_bytes=5)
    assert [i.peer for i in instructions] == [2, 0, 2, 0]
    assert [i.follows for i in instructions] == [(), (), ((1, 0),), ()]
