"""The protocol on a virtual clock: random programs of real schedules; priorities."""

import random

import pytest

from placet.wire.engine.schedule import Instruction, Kind
from testing.wire_model.cases import Case, random_case, wait
from testing.wire_model.clock import Job, Link, Rules, Timed, simulate
from testing.wire_model.jobs import KINDS, NUM_ELEMENTS, random_job, tables_of
from testing.wire_model.tables import table_of

MIB = 1 << 20
SLOW = Link(bytes_per_second=12.5e6, latency_seconds=1e-4)  # 100 Mbit/s
PAIR = (0, 1)


def ring_job(
    sizes: list[int],
    priority: dict[int, int],
    not_before: dict[tuple[int, int], float] | None = None,
) -> Job:
    """All-reduces of so many bytes between two ranks, submitted in order."""
    calls = tuple(range(len(sizes)))
    case = Case((PAIR,) * len(sizes), (calls, calls))
    tables = {
        (rank, c): table
        for c, num_bytes in enumerate(sizes)
        for rank, table in enumerate(tables_of("all-reduce ring", 2, num_bytes // 4))
    }
    return Job(case, tables, priority, not_before or {})


def ended(timed: Timed, c: int) -> float:
    return max(s for (_, other), s in timed.ended_seconds.items() if other == c)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_move_ends_whatever_its_bounds(kind):
    for size in (2, 3, 4, 7, 8):
        for num_elements in NUM_ELEMENTS[1:4]:
            case = Case((tuple(range(size)),), ((0, wait(0)),) * size)
            tables = tables_of(kind, size, num_elements)
            job = Job(case, {(rank, 0): table for rank, table in enumerate(tables)})
            rules = Rules(chance=size, slice_bytes=4096, eager_bytes=8, early_bytes=8)
            assert simulate(job, rules).complete, (kind, size, num_elements)


@pytest.mark.parametrize(
    "num_programs", [100, pytest.param(10_000, marks=pytest.mark.prove)]
)
def test_random_programs_of_real_schedules_never_hang(num_programs):
    rng = random.Random(num_programs)
    slices = aside = collectives = in_order = tried = 0
    for chance in range(num_programs):
        case = random_case(rng, rng.randint(2, 16), rng.randint(2, 8))
        job = random_job(rng, case)
        rules = Rules(
            chance=chance,
            slice_bytes=1 << 16,
            eager_bytes=1 << 13,
            early_bytes=rng.choice((1 << 13, 1 << 15, 1 << 20)),
        )
        timed = simulate(job, rules)
        assert timed.complete, (num_programs, chance, case)
        assert timed.most_aside_bytes <= rules.early_bytes
        aside = max(aside, timed.most_aside_bytes)
        slices += timed.num_slices
        collectives += len(case.groups)
        if chance % 10 == 0 and len(case.groups) > 4:
            tried += 1
            in_order += not simulate(job, Rules(chance=chance, preempts=False)).complete
    print(
        f"{num_programs} programs of 2-16 ranks, {collectives} collectives,"
        f" {slices} slices: none hangs, at most {aside} bytes aside;"
        f" without preemption {in_order} of {tried} hang"
    )
    assert aside > 0
    assert in_order > 0.9 * tried


def test_urgent_overtakes_bulk():
    """256 KiB of priority, submitted a second after 64 MiB, at 100 Mbit/s."""
    begin = 1.0
    job = ring_job([64 * MIB, MIB // 4], {1: 1}, {(0, 1): begin, (1, 1): begin})
    urgent = simulate(job, Rules(link=SLOW))
    queued = simulate(job, Rules(link=SLOW, pick="oldest"))
    ratio = (ended(queued, 1) - begin) / (ended(urgent, 1) - begin)
    print(f"urgent all-reduce {ratio:.0f} times sooner than in order of submission")
    assert ratio >= 10
    assert urgent.makespan_seconds <= 1.05 * queued.makespan_seconds


def test_aging_lets_the_oldest_end_under_endless_urgency():
    """Behind 64 urgent MiB, one bulk MiB gets every 16th slice, so it ends in time."""
    job = ring_job([MIB] + [MIB] * 64, dict.fromkeys(range(1, 65), 1))
    aged = simulate(job, Rules(link=SLOW))
    starved = simulate(job, Rules(link=SLOW, aging=0))
    slices_of_bulk = 4
    slice_seconds = (1 << 18) / SLOW.bytes_per_second
    # Two chunks, the second of which begins once the first has come.
    assert ended(aged, 0) <= 16 * (slices_of_bulk + 2) * slice_seconds
    assert ended(starved, 0) > 0.9 * starved.makespan_seconds
    assert aged.makespan_seconds <= 1.05 * starved.makespan_seconds


def test_urgency_costs_others_no_time_in_all():
    sizes = [MIB] * 16
    in_order = simulate(ring_job(sizes, {}), Rules(link=SLOW, pick="oldest"))
    urgent = simulate(ring_job(sizes, {15: 9, 7: 3}), Rules(link=SLOW))
    assert ended(urgent, 15) < ended(urgent, 7) < ended(in_order, 7)
    assert urgent.makespan_seconds <= 1.05 * in_order.makespan_seconds


def test_the_clock_is_alpha_beta():
    """Two rounds, one behind the other, of a frame of 8 KiB; before them a READY."""
    timed = simulate(ring_job([1 << 14], {}), Rules(link=SLOW))
    rate, latency = SLOW.bytes_per_second, SLOW.latency_seconds
    rounds = 2 * ((48 + (1 << 13)) / rate + latency)
    assert timed.makespan_seconds == pytest.approx(48 / rate + rounds)
    assert timed.num_slices == 4


def test_the_same_seed_gives_the_same_run():
    job = random_job(random.Random(1), random_case(random.Random(1), 6, 5))
    assert simulate(job, Rules(chance=3)) == simulate(job, Rules(chance=3))
    assert simulate(job, Rules(chance=3)) != simulate(job, Rules(chance=4))


def test_a_receive_that_waits_is_refused():
    with pytest.raises(ValueError, match="instruction 1 receives, yet follows"):
        table_of(
            (
                Instruction(Kind.SEND, 4, peer=1),
                Instruction(Kind.RECEIVE, 4, peer=1, follows=((0, 0),)),
            )
        )
