"""What the engine is spared: in-order queues hang in such programs, gloo sums wrongly.

A FIFO over the engine itself, ranks as threads, so a deadlock costs a short deadline;
gloo in processes of its own, since it may end them.
"""

import random
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from placet.errors import WireError, WireTimeout
from testing.engine_ranks import run_engine
from testing.failures import RankDied
from testing.fifo_wire import FifoWire
from testing.random_programs import WHOLLY, Program, random_program
from testing.ranks import run_ranks
from tests.wire.program_player import play

NUM_RANKS = 3
SHORT_SECONDS = 0.3


def on_fifo(wire, program: Program, disorder: float) -> str:
    """Play a program through an in-order queue; how it ended."""
    queue = FifoWire(wire)
    try:
        wrong, _ = play(queue, program, waits=False, disorder=disorder)
    except WireTimeout:
        return "deadlock"
    except WireError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        queue.close()
    return wrong[0] if wrong else "right"


def small_program(seed: int) -> Program:
    """Six or more collectives over all ranks and pairs of them, of little data."""
    num_calls = random.Random(seed).randint(6, 64)
    groups = ((0, 1, 2), (0, 1), (1, 2), (0, 2), (0, 1, 2))
    return random_program(
        seed, NUM_RANKS, num_calls=num_calls, most_bytes=1 << 12, groups=groups
    )


def ends_on_fifo(seeds: range, seconds: float, *, disorder: float) -> Counter[str]:
    """How many programs end how; one deadlock on any rank is the program's."""
    found: Counter[str] = Counter()
    for seed in seeds:
        results = run_engine(
            NUM_RANKS,
            on_fifo,
            small_program(seed),
            disorder,
            timeout_seconds=seconds,
        )
        texts = {str(result) for result in results}
        found["deadlock" if "deadlock" in texts else max(texts)] += 1
    return found


def test_fifo_deadlocks_sample():
    assert ends_on_fifo(range(4), 5.0, disorder=0.0) == {"right": 4}
    found = ends_on_fifo(range(6), 0.15, disorder=WHOLLY)
    print(f"an in-order queue, 6 programs in random orders: {dict(found)}")
    assert found["deadlock"] == 6


@pytest.mark.prove
def test_fifo_deadlocks():
    num = 200
    in_order = ends_on_fifo(range(num), 20.0, disorder=0.0)
    found = ends_on_fifo(range(num), SHORT_SECONDS, disorder=WHOLLY)
    print(
        f"an in-order queue, {num} programs of 6 or more collectives, {NUM_RANKS} "
        f"ranks: in one order {dict(in_order)}, in random orders {dict(found)}"
    )
    assert in_order == {"right": num}
    assert found["deadlock"] >= 0.95 * num


def reduce_two(wire, sizes: tuple[int, int]) -> tuple[list[float], list[float]]:
    """Two all-reduces on gloo itself, in opposite orders on the two ranks."""
    ones, tens = torch.full((sizes[0],), 1.0), torch.full((sizes[1],), 10.0)
    order = (ones, tens) if wire.rank == 0 else (tens, ones)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in order]
    for work in works:
        work.wait()
    return ones.unique().tolist(), tens.unique().tolist()


@pytest.mark.procs
def test_gloo_sums_wrongly_where_sizes_are_equal():
    try:
        found = run_ranks(2, reduce_two, (1000, 1000), timeout=30, wire_timeout=5)
    except (RankDied, RuntimeError) as error:  # or it hangs
        print(f"gloo, equal sizes: {error!r}")
        return
    print(f"gloo, equal sizes: {found}, should be 2 and 20")
    assert ([2.0], [20.0]) not in found


@pytest.mark.procs
def test_gloo_aborts_where_sizes_differ():
    with pytest.raises((RankDied, RuntimeError)) as caught:
        run_ranks(2, reduce_two, (1000, 3000), timeout=30, wire_timeout=5)
    print(f"gloo, different sizes: {caught.value!r}")
