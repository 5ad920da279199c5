"""Ranks that submit in orders of their own: no program hangs, no bit is wrong.

The ranks are real processes. One start of them plays many programs.
"""

import pytest
import torch

from placet.boxing.moves import AllReduce, AllToAll
from placet.wire.interface import Wire
from testing.engine_ranks import run_engine
from testing.random_programs import (
    MOST_BYTES,
    Program,
    acts_of,
    random_program,
)
from testing.ranks import Carrier, run_ranks
from tests.wire.program_player import Played, play_all

HANGS_AFTER = 30.0
"""Seconds after which the wire names a move that does not end."""


def play_seeds(wire: Wire, seeds: range, most_bytes: int) -> Played:
    """Play the programs of some seeds: the same on all ranks."""
    size = wire.num_ranks
    return play_all(
        wire, (random_program(seed, size, most_bytes=most_bytes) for seed in seeds)
    )


def played_without_fault(
    num_ranks: int,
    carrier: Carrier,
    seeds: range,
    *,
    timeout: float,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Each program ends on each rank, with what its definition says."""
    found = run_ranks(
        num_ranks,
        play_seeds,
        seeds,
        most_bytes,
        carrier=carrier,
        timeout=timeout,
        wire_timeout=HANGS_AFTER,
    )
    results = [played for played in found if played is not None]
    hung = [text for played in results for text in played.hung]
    wrong = [text for played in results for text in played.wrong]
    num_moves = sum(played.num_moves for played in results)
    print(
        f"{carrier}, {num_ranks} ranks, seeds {seeds.start} to {seeds.stop - 1}: "
        f"{results[0].num_programs} programs, {num_moves} moves (each counted on each "
        f"rank), hangs {len(hung)}, wrong {len(wrong)}"
    )
    assert not hung, hung[0]
    assert not wrong, wrong[0]
    assert [played.num_programs for played in results] == [len(seeds)] * num_ranks


@pytest.mark.procs
def test_random_orders_sample():
    played_without_fault(3, "native", range(20), timeout=60)


@pytest.mark.prove
@pytest.mark.procs
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_random_orders(num_ranks):
    seeds = range(1000 * num_ranks, 1000 * num_ranks + 1000)
    played_without_fault(num_ranks, "native", seeds, timeout=1800)


@pytest.mark.prove
@pytest.mark.procs
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_random_orders_plain_core(num_ranks):
    seeds = range(100 * num_ranks, 100 * num_ranks + 60)
    played_without_fault(num_ranks, "plain", seeds, timeout=1200)


def pass_then_add(wire: Wire) -> list[float]:
    """The first move has nothing for rank 2 to do; the second, under its key, has."""
    group = (0, 1, 2)
    one_way = AllToAll(group, ((0, 1, 0), (0, 0, 0), (0, 0, 0)), torch.float32)
    given = torch.ones(1 if wire.rank == 0 else 0)
    wire.submit(one_way, given, key="again").wait()
    summed = AllReduce(group, 1, torch.float32)
    return wire.submit(summed, torch.ones(1), key="again").wait().tolist()


def test_key_serves_again_though_a_rank_had_nothing_to_do():
    assert run_engine(3, pass_then_add, timeout_seconds=5.0) == [[3.0]] * 3


@pytest.mark.parametrize("seed", range(30))
def test_programs_wait_without_a_cycle(seed):
    """What the suite relies on: in-order counting of who can go on ends everywhere."""
    program = random_program(seed, 4)
    acts = [acts_of(program, rank) for rank in range(4)]
    assert ends(program, [list(a) for a in acts])
    for rank, mine in enumerate(acts):
        numbers = [c.number for c in program.calls if rank in c.move.group]
        for kind in ("submit", "wait"):
            done = [a.call.number for a in mine if a.kind == kind and a.call]
            assert sorted(done) == numbers, (seed, rank, kind)


def test_programs_are_disordered_and_wait_in_between():
    disordered = waiting = reused = 0
    for seed in range(30):
        program = random_program(seed, 3)
        names = {(call.key, call.move.group) for call in program.calls}
        reused += len(names) < len(program.calls)
        for rank in range(3):
            kinds = [act for act in acts_of(program, rank) if act.call]
            numbers = [a.call.number for a in kinds if a.kind == "submit" and a.call]
            disordered += numbers != sorted(numbers)
            submits = [i for i, act in enumerate(kinds) if act.kind == "submit"]
            waits = [i for i, act in enumerate(kinds) if act.kind == "wait"]
            waiting += bool(waits) and min(waits) < max(submits)
    assert disordered > 45
    assert waiting > 20
    assert reused > 15


def ends(program: Program, acts: list[list]) -> bool:
    """Whether all ranks come to their end on a wire that takes any order."""
    submitted: dict[int, set[int]] = {c.number: set() for c in program.calls}
    members = {c.number: set(c.move.group) for c in program.calls}
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(acts):
            while mine:
                act = mine[0]
                number, kind = act.call and act.call.number, act.kind
                if kind == "submit":
                    submitted[number].add(rank)
                if kind == "wait" and submitted[number] != members[number]:
                    break
                mine.pop(0)
                moved = True
    return not any(acts)
