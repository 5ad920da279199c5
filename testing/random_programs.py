"""Random programs of collectives, that any order-free wire must carry: pure values.

    program = random_program(seed, num_ranks=3)         # the calls: equal on all ranks
    for act in acts_of(program, rank):                  # this rank's own order
        ...                                             # submit, wait, or pause

Every rank submits its calls in an order of its own, some slightly and some wholly
disordered, with its own priorities and pauses, and waits for some of them in between.

# NOTE [Waits that make no cycle]
All ranks would wait for each other for ever if one waited for call a before submitting
b, and another the reverse. Calls are numbered, and a rank waits for number k only when
it has submitted all of its calls up to k. Suppose some waits never end, and let k be
the smallest of their numbers. A member that has not submitted k waits for a smaller
number, as it would have submitted k before any wait for a greater one: against the
choice of k. So all have submitted k, and the wait is the wire's to end.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from placet.boxing.algorithms import EXCHANGE_SCRATCH_BYTES
from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    MoveReduction,
    ReduceScatter,
)
from placet.wire.check import REDUCIBLE, payload_size

MOST_CALLS = 64
MOST_BYTES = 4 << 20
LEAST_BYTES = 4

WHOLLY = 1e9
"""Disorder in which every order of the calls has the same chance."""

PERIOD = 13
"""Payloads repeat after so many elements; so many calls in turn differ."""

_CARRIED = (torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn)
_PRODUCTS = (torch.float64, torch.float32, torch.int64, torch.int32)
"""dtypes in which the product of four numbers below 13 is exact."""


@dataclass(frozen=True)
class Call:
    """One collective of a program.

    Args:
        number: its place in the program, from 0.
        key: under which all members submit it; one may serve several calls of a group.
        move: what moves.
        in_place: whether the result goes where the payload is.
    """

    number: int
    key: str
    move: Move
    in_place: bool


@dataclass(frozen=True)
class Program:
    """Calls, and the seed that the ranks' orders come from."""

    seed: int
    num_ranks: int
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Act:
    """What a rank does next.

    Args:
        kind: submit a call, wait for it, or pause.
        call: which call, if any.
        priority: of a submission.
        seconds: of a pause.
    """

    kind: Literal["submit", "wait", "pause"]
    call: Call | None = None
    priority: int = 0
    seconds: float = 0.0


Give: TypeAlias = Callable[[Move, int, str], Tensor]
"""(move, rank, device) -> payload"""


def random_program(
    seed: int,
    num_ranks: int,
    *,
    num_calls: int | None = None,
    most_bytes: int = MOST_BYTES,
    groups: Sequence[tuple[int, ...]] = (),
) -> Program:
    """Calls of all kinds, sizes and dtypes, over overlapping groups.

    Args:
        seed: decides all.
        num_ranks: how many ranks there are.
        num_calls: how many calls; 1 to 64 if left out.
        most_bytes: of a payload; sizes are even on a logarithmic scale from 4 bytes.
        groups: to choose from; any ranks in any order if left out.
    """
    rng = random.Random(seed)
    calls: list[Call] = []
    for number in range(num_calls or rng.randint(1, MOST_CALLS)):
        key = f"m{number}"
        group = rng.choice(groups) if groups else _random_group(rng, num_ranks)
        if calls and rng.random() < 0.1:  # the key and group of an earlier call again
            earlier = rng.choice(calls)
            key, group = earlier.key, earlier.move.group
        move = _random_move(rng, group, most_bytes)
        may = isinstance(move, AllReduce | BroadcastFrom)
        calls.append(Call(number, key, move, may and rng.random() < 0.5))
    return Program(seed, num_ranks, tuple(calls))


def acts_of(
    program: Program,
    rank: int,
    *,
    waits: bool = True,
    disorder: float | None = None,
) -> list[Act]:
    """What `rank` does; see NOTE [Waits that make no cycle].

    Args:
        program: the calls.
        rank: who asks.
        waits: whether it waits in between, and not only in the end.
        disorder: how many places, about, a call may be moved; 0 for the program's
            order; of this rank's own choice, from none to wholly shuffled, if left out.
    """
    rng = random.Random(f"{program.seed}, {rank}")
    reach = rng.choice((0.0, 3.0, 10.0, WHOLLY)) if disorder is None else disorder
    order = _order(rng, program, rank, reach)
    unsubmitted = {call.number for call in order}
    waitable: list[Call] = []
    acts: list[Act] = []
    wait_chance = rng.choice((0.0, 0.2, 0.6)) if waits else 0.0
    pause_chance = rng.choice((0.0, 0.0, 0.05))
    for call in order:
        if rng.random() < pause_chance:
            acts.append(Act("pause", seconds=rng.uniform(0.0, 2e-3)))
        acts.append(Act("submit", call, priority=rng.choice((0, 0, 0, -1, 1, 7))))
        unsubmitted.discard(call.number)
        waitable.append(call)
        while waitable and rng.random() < wait_chance:
            waited = rng.choice(waitable)
            if min(unsubmitted, default=MOST_CALLS) < waited.number:
                break
            waitable.remove(waited)
            acts.append(Act("wait", waited))
    rng.shuffle(waitable)
    return acts + [Act("wait", call) for call in waitable]


def payload_for(call: Call) -> Give:
    """What each rank gives to a call: whole numbers below 13, other ones for the next.

    Sums and products of four of them are exact in every dtype that reduces them here.
    The tensors are views of shared memory: copy before use.
    """

    def give(move: Move, rank: int, device: str) -> Tensor:
        start = (3 * rank + 5 * call.number) % PERIOD
        size = payload_size(move, rank)
        return _pattern(move.dtype, 1 << size.bit_length())[start : start + size]

    return give


@cache
def _pattern(dtype: torch.dtype, num_elements: int) -> Tensor:
    index = torch.arange(num_elements + PERIOD) % PERIOD
    return (index % 2 if dtype is torch.bool else index).to(dtype)


def _random_group(rng: random.Random, num_ranks: int) -> tuple[int, ...]:
    """A pair at least nine times in ten, mostly in the usual order."""
    least = 1 if rng.random() < 0.1 else min(2, num_ranks)
    ranks = rng.sample(range(num_ranks), rng.randint(least, num_ranks))
    return tuple(ranks if rng.random() < 0.3 else sorted(ranks))


def _random_move(rng: random.Random, group: tuple[int, ...], most_bytes: int) -> Move:
    exponent = rng.uniform(math.log(LEAST_BYTES), math.log(most_bytes))
    num_bytes = min(most_bytes, round(math.exp(exponent)))
    kind = rng.choice(("reduce", "reduce", "gather", "scatter", "swap", "broadcast"))
    reduces = kind in ("reduce", "scatter")
    choice = sorted(REDUCIBLE, key=str)
    dtype = rng.choice(choice if reduces else [*choice, *_CARRIED])
    total = max(1, num_bytes // dtype.itemsize)
    counts = _split(rng, total, len(group))
    match kind:
        case "reduce":
            return _random_all_reduce(rng, group, total, dtype)
        case "gather":
            return AllGather(group, counts, dtype, rng.choice((None, "ring", "direct")))
        case "scatter":
            how: Literal["ring", "direct"] = rng.choice(("ring", "direct"))
            return ReduceScatter(group, counts, dtype, _reduction(rng, dtype), how)
        case "swap":
            table = tuple(_split(rng, count, len(group)) for count in counts)
            return AllToAll(group, table, dtype)
        case _:
            return BroadcastFrom(group, rng.choice(group), total, dtype)


def _random_all_reduce(
    rng: random.Random, group: tuple[int, ...], total: int, dtype: torch.dtype
) -> Move:
    reduction = _reduction(rng, dtype)
    if len(group) == 4 and rng.random() < 0.3:
        blocks = (group[:2], group[2:])
        return AllReduce(group, total, dtype, reduction, "hierarchical", blocks)
    how: Literal["ring", "exchange", "doubling"]
    how = rng.choice(("ring", "exchange", "doubling"))
    scratch_bytes = total * dtype.itemsize * (len(group) - 1)
    if how == "exchange" and scratch_bytes > EXCHANGE_SCRATCH_BYTES:
        how = "ring"
    return AllReduce(group, total, dtype, reduction, how)


def _reduction(rng: random.Random, dtype: torch.dtype) -> MoveReduction:
    usual: tuple[MoveReduction, ...] = ("sum", "sum", "max", "min")
    return rng.choice((*usual, "prod") if dtype in _PRODUCTS else usual)


def _split(rng: random.Random, total: int, num: int) -> tuple[int, ...]:
    """Counts that add up to about `total`: even, uneven, or all in one place."""
    how = rng.random()
    if how < 0.4:
        return (total // num,) * num
    if how < 0.6:
        place = rng.randrange(num)
        return tuple(total if i == place else 0 for i in range(num))
    cuts = sorted(rng.randint(0, total) for _ in range(num - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def _order(rng: random.Random, program: Program, rank: int, reach: float) -> list[Call]:
    """Calls of one key keep their order: nothing else tells them apart."""
    calls = [call for call in program.calls if rank in call.move.group]
    moved = sorted(calls, key=lambda call: call.number + rng.uniform(0.0, reach))
    named: dict[tuple[str, tuple[int, ...]], list[Call]] = {}
    for call in calls:
        named.setdefault((call.key, call.move.group), []).append(call)
    return [named[call.key, call.move.group].pop(0) for call in moved]
