"""Whole collectives as one step: who can hang, over very many programs."""

import random
from dataclasses import replace

import pytest

from testing.wire_model.cases import (
    Case,
    cycle_of,
    has_cycle,
    needs_of,
    random_case,
    wait,
    with_cycle,
)
from testing.wire_model.collectives import hung_ranks, run_case, wait_for_test

OPPOSITE = Case(groups=((0, 1), (0, 1)), calls=((0, 1), (1, 0)))
CYCLE = replace(OPPOSITE, calls=((0, wait(0), 1), (1, wait(1), 0)))
NUM_CASES = [10_000, pytest.param(1_000_000, marks=pytest.mark.prove)]


def drawn(rng: random.Random) -> Case:
    return random_case(rng, rng.randint(2, 16), rng.randint(6, 12))


def naive_done(case: Case, *, in_order: bool) -> list[bool]:
    """The same rules, word for word, again and again until nothing changes."""
    done = [False] * len(case.groups)
    places = [0] * case.num_ranks

    def works_on(rank: int) -> list[int]:
        begun = [c for c in case.calls[rank][: places[rank]] if c >= 0 and not done[c]]
        return begun[:1] if in_order else begun

    changed = True
    while changed:
        changed = False
        for rank, calls in enumerate(case.calls):
            if places[rank] < len(calls):
                call = calls[places[rank]]
                if call >= 0 or done[~call]:
                    places[rank] += 1
                    changed = True
        for c, group in enumerate(case.groups):
            if not done[c] and all(c in works_on(rank) for rank in group):
                done[c] = changed = True
    return done


def test_opposite_orders_hang_a_queue_alone():
    assert run_case(OPPOSITE, "in-order").done == (False, False)
    assert run_case(OPPOSITE, "preemptive").done == (True, True)
    same = replace(OPPOSITE, calls=((0, 1), (0, 1)))
    assert not run_case(same, "in-order").deadlocked


def test_following_one_schedule_tells_all():
    rng = random.Random(5)
    for _ in range(300):
        case = random_case(rng, rng.randint(2, 5), rng.randint(1, 4))
        if case.num_ranks > 2 and rng.random() < 0.5:
            case = with_cycle(rng, case, 3)
        for discipline in ("preemptive", "in-order"):
            expected = naive_done(case, in_order=discipline == "in-order")
            assert list(run_case(case, discipline).done) == expected, case


@pytest.mark.parametrize("num_cases", NUM_CASES)
def test_random_programs_hang_in_order_and_never_preemptive(num_cases):
    rng = random.Random(num_cases)
    in_order = waits = 0
    for _ in range(num_cases):
        case = drawn(rng)
        end = run_case(case, "preemptive")
        assert not end.deadlocked, case
        assert not has_cycle(case), case
        in_order += run_case(case, "in-order").deadlocked
        calls = max(case.calls, key=len)
        waits += any(call < 0 for call in calls[: len(calls) // 2])
    print(
        f"{num_cases} programs of 2-16 ranks, 6-12 collectives, {waits} with early"
        f" waits: preemptive 0 hang, in order {in_order}"
    )
    assert in_order > 0.95 * num_cases
    assert waits > 0.3 * num_cases


@pytest.mark.parametrize(
    "num_cases", [1000, pytest.param(100_000, marks=pytest.mark.prove)]
)
def test_cycles_of_the_application_are_found_and_named(num_cases):
    rng = random.Random(num_cases)
    longest = 0
    for _ in range(num_cases):
        case = drawn(rng)
        case = with_cycle(rng, case, rng.randint(2, min(case.num_ranks, 5)))
        end = run_case(case, "preemptive")
        assert end.deadlocked, case
        assert wait_for_test(hung_ranks(case, end)), case
        found = cycle_of(case)
        needs = needs_of(case)
        for need, then in zip(found, [*found[1:], found[0]], strict=True):
            assert need in needs
            assert need.waited == then.submitted
            assert not end.done[need.waited]
        longest = max(longest, len(found))
    print(f"{num_cases} programs with a cycle: all found, up to {longest} long")


def test_a_program_without_cycle_is_not_accused():
    rng = random.Random(8)
    for _ in range(500):
        case = drawn(rng)
        assert cycle_of(case) == ()
        assert not wait_for_test(hung_ranks(case, run_case(case, "preemptive")))


def test_a_cycle_reads_as_what_ranks_did():
    assert [str(need) for need in cycle_of(CYCLE)] == [
        "rank 1 waits for 1 before it submits 0",
        "rank 0 waits for 0 before it submits 1",
    ]
    assert wait_for_test(hung_ranks(CYCLE, run_case(CYCLE, "preemptive"))) == (0, 1)


def test_a_rank_that_never_comes_is_no_cycle():
    late = replace(OPPOSITE, calls=((0, 1, wait(0)), (1,)))
    end = run_case(late, "preemptive")
    assert end.done == (False, True)
    assert wait_for_test(hung_ranks(late, end)) == ()
    assert cycle_of(late) == ()


def test_a_cycle_needs_as_many_ranks():
    with pytest.raises(ValueError, match="a cycle of 3 in 2 ranks"):
        with_cycle(random.Random(0), OPPOSITE, 3)
