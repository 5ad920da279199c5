"""Calls of torch.distributed, which name no key: random programs on the wire's group.

In one order all is right. In orders of the ranks' own, too, as long as something (kind,
group, shape, dtype, reduction, root) tells the calls apart; those that nothing tells
apart keep their order, as the documentation asks.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import placet.wire.backend  # noqa: F401 (registers it)
from testing.ranks import run_ranks

GROUPS = ((0, 1, 2), (0, 1), (1, 2), (0, 2))
DTYPES = (torch.float32, torch.float64, torch.int32, torch.bfloat16)


@dataclass(frozen=True)
class Call:
    """What torch.distributed is asked for; its fields are all that tells it apart."""

    kind: str
    group: int
    size: int
    dtype: torch.dtype
    detail: int


def random_calls(rng: random.Random) -> list[Call]:
    """6 to 30 calls, some of them alike."""
    return [_random_call(rng) for _ in range(rng.randint(6, 30))]


def _random_call(rng: random.Random) -> Call:
    kind = rng.choice(("all_reduce", "all_reduce", "broadcast", "gather", "reduce"))
    return Call(
        kind,
        rng.randrange(len(GROUPS)),
        rng.choice((1, 100, 100, 5000, 40_000)),
        rng.choice(DTYPES),
        rng.randrange(2) if kind != "gather" else 0,  # which has no detail
    )


def order_of(
    rng: random.Random, calls: Sequence[Call], rank: int, shuffled: bool
) -> list[int]:
    """The places of a rank's calls, in its own order; equal ones keep theirs."""
    mine = [i for i, call in enumerate(calls) if rank in GROUPS[call.group]]
    if not shuffled:
        return mine
    moved = rng.sample(mine, len(mine))
    alike: dict[Call, Iterator[int]] = {
        call: iter([i for i in mine if calls[i] == call]) for call in set(calls)
    }
    return [next(alike[calls[i]]) for i in moved]


def start(call: Call, group: dist.ProcessGroup, given: list[Tensor]) -> tuple:
    """(work, result, what it should be) of a call; `given`: of each member."""
    members = GROUPS[call.group]
    me, root = dist.get_rank(group), call.detail
    mine = given[me].clone()
    if call.kind == "broadcast":
        work = dist.broadcast(mine, members[root], group=group, async_op=True)
        return work, mine, given[root]
    if call.kind == "gather":
        parts = [torch.empty_like(mine) for _ in members]
        work = dist.all_gather(parts, mine, group=group, async_op=True)
        return work, parts, given
    if call.kind == "reduce":
        work = dist.reduce(mine, members[root], group=group, async_op=True)
        return work, mine, sum(given) if me == root else None
    op = (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[call.detail]
    work = dist.all_reduce(mine, op, group=group, async_op=True)
    return work, mine, torch.stack(given).amax(0) if call.detail else sum(given)


def play(groups: list, rng: random.Random, calls: list[Call], shuffled: bool) -> int:
    """Start all calls, wait for all; how many results were wrong."""
    started = []
    for i in order_of(rng, calls, dist.get_rank(), shuffled):
        call = calls[i]
        index = torch.arange(call.size)
        given = [
            ((index + 3 * rank + 5 * i) % 13).to(call.dtype)
            for rank in GROUPS[call.group]
        ]
        started.append(start(call, groups[call.group], given))
    rng.shuffle(started)
    num_wrong = 0
    for work, found, wanted in started:
        work.wait()
        if wanted is not None:
            found, wanted = (x if isinstance(x, list) else [x] for x in (found, wanted))
            num_wrong += not all(map(torch.equal, found, wanted))
    return num_wrong


def play_seeds(_wire, seeds: range, shuffled: bool) -> list[int]:
    """How many results of each program were wrong."""
    groups = [dist.group.WORLD, *(dist.new_group(list(g)) for g in GROUPS[1:])]
    found = []
    for seed in seeds:
        own = random.Random(f"{seed}, {dist.get_rank()}")
        found.append(play(groups, own, random_calls(random.Random(seed)), shuffled))
    return found


def play_each_way(wire, seeds: range) -> tuple[list[int], list[int]]:
    """In one order, then in random ones."""
    return play_seeds(wire, seeds, False), play_seeds(wire, seeds, True)


def played_without_fault(seeds: range, timeout: float) -> None:
    """All is right in one order, and in random ones: what differs is told apart."""
    for found in run_ranks(3, play_each_way, seeds, backend="placet", timeout=timeout):
        assert found is not None
        in_order, shuffled = found
        print(
            f"unkeyed calls, {len(seeds)} programs: wrong in one order "
            f"{sum(in_order)}, in random orders {sum(shuffled)}"
        )
        assert not any(in_order), f"in order, seed {seeds[_first(in_order)]}"
        assert not any(shuffled), f"in random orders, seed {seeds[_first(shuffled)]}"


def _first(wrong: list[int]) -> int:
    return next(i for i, num in enumerate(wrong) if num)


@pytest.mark.procs
def test_unkeyed_calls_sample():
    played_without_fault(range(6), timeout=40)


@pytest.mark.prove
@pytest.mark.procs
def test_unkeyed_calls():
    played_without_fault(range(100, 500), timeout=900)
