"""Every algorithm's schedules, run in every order that is allowed."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from placet.boxing.algorithms import stages
from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    MoveReduction,
    ReduceScatter,
)
from placet.boxing.scratch import scratch_bytes
from placet.wire.check import payload_size, result_size
from placet.wire.engine.compile import compile_move
from placet.wire.engine.schedule import Kind, Schedule
from placet.wire.engine.verify import verify
from placet.wire.twin_moves import carry
from tests.wire.conformance import expected, moves_of, payload_of, same
from tests.wire.engine.interpreter import Key, Rank, run, start

POLICIES = ("random", "sends late", "receives late", "one rank late", "fixed")


def policy(name: str, ranks: tuple[int, ...], dice: random.Random) -> Key:
    """Which instructions are put off."""
    late = dice.choice(ranks)
    weights: dict[object, float] = {}

    def put_off(rank, instruction):
        first = dice.random()
        match name:
            case "sends late":
                return first + (instruction.kind is Kind.SEND)
            case "receives late":
                return first + (instruction.kind in (Kind.RECEIVE, Kind.RECEIVE_REDUCE))
            case "one rank late":
                return first + (rank == late and instruction.kind is Kind.SEND)
            case "fixed":
                return weights.setdefault((rank, instruction), first)
        return first

    return put_off


def algorithms_of(move: Move) -> Iterator[Move]:
    """The move with each algorithm that it can have."""
    size, group = len(move.group), move.group
    match move:
        case AllReduce():
            for algorithm in ("ring", "direct", "exchange", "doubling"):
                yield replace(move, algorithm=algorithm)
            for num_blocks in range(2, size // 2 + 1):
                if size % num_blocks == 0:
                    length = size // num_blocks
                    blocks = [group[i : i + length] for i in range(0, size, length)]
                    yield replace(move, algorithm="hierarchical", blocks=tuple(blocks))
        case AllGather():
            yield replace(move, chosen="ring")
            yield replace(move, chosen="direct")
        case ReduceScatter():
            yield replace(move, algorithm="ring")
            yield replace(move, algorithm="direct")
        case _:
            yield move


def results_of(
    move: Move,
    payloads: dict[int, Tensor],
    seed: object,
    name: str,
    *,
    in_place: bool = False,
    schedules: dict[int, Schedule] | None = None,
) -> dict[int, Tensor]:
    """Run a move's schedules; what each rank gets. Checks bytes and payloads."""
    dice = random.Random(f"{seed} {name}")
    given_ = {rank: payload.clone() for rank, payload in payloads.items()}
    outs = {}
    ranks: dict[int, Rank] = {}
    for rank, payload in given_.items():
        size = result_size(move, rank)
        junk = torch.full((size * move.dtype.itemsize,), 0xA5, dtype=torch.uint8)
        outs[rank] = payload if in_place else junk.view(move.dtype)
        schedule = (schedules or {}).get(rank) or compile_move(move, rank)
        ranks[rank] = start(schedule, move.dtype, payload, outs[rank])
    longest = max(map(payload_size, [move] * len(ranks), ranks)) * move.dtype.itemsize
    run(
        ranks,
        move.dtype,
        channel_bytes=max(dice.choice((16, 64, 1 << 20)), longest // 8),
        put_off=policy(name, move.group, dice),
        dice=dice,
        greedy=dice.random() < 0.5,
    )
    for rank, state in ranks.items():
        assert state.sent == state.schedule.sent_bytes == move.sent_bytes(rank)
        assert state.received == state.schedule.received_bytes
        assert state.received == move.received_bytes(rank)
        if not in_place:
            same(given_[rank], payloads[rank])
    return outs


def check(move: Move, seed: object, name: str, in_place: bool = False) -> None:
    payloads = {rank: payload_of(move, rank, "cpu") for rank in move.group}
    found = results_of(move, payloads, seed, name, in_place=in_place)
    for rank in move.group:
        same(found[rank], expected(move, rank, "cpu"))


def groups(size: int) -> list[tuple[int, ...]]:
    """Forwards, backwards, and rotated with gaps."""
    ranks = tuple(range(size))
    return [ranks, ranks[::-1], tuple(2 * ((i + 2) % size) + 1 for i in ranks)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_every_move_in_random_orders(size):
    for g, group in enumerate(groups(size)):
        for i, plain in enumerate(moves_of(group, torch.float64)):
            if (size > 3 and i % 3 != g) or (size > 4 and i % 2):
                continue
            for j, move in enumerate(algorithms_of(plain)):
                name = POLICIES[(g + i + j) % len(POLICIES)]
                check(move, f"{group} {i} {j}", name)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_in_place_whatever_is_late(size):
    for group in groups(size)[1 : 2 if size > 4 else 3]:
        moves = [BroadcastFrom(group, group[1], 10, torch.int32)]
        moves += algorithms_of(AllReduce(group, 13, torch.int32))
        for move in moves:
            for name in POLICIES:
                check(move, f"{move}", name, in_place=True)


DTYPES = (
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def terms_of(dtype: torch.dtype, reduction: str, rank: int, size: int) -> Tensor:
    index = torch.arange(size)
    if dtype == torch.bool:
        return (3 * rank + index) % 7 < (2 if reduction in ("sum", "max") else 6)
    if reduction == "prod":
        return (1 + (rank + index) % 2).to(dtype)
    return ((3 * rank + index) % 11 - 3).to(dtype)


def reduced(terms: Tensor, reduction: MoveReduction) -> Tensor:
    match reduction:
        case "sum" if terms.dtype == torch.bool:
            return terms.any(0)
        case "sum":
            return terms.sum(0, dtype=terms.dtype)
        case "prod" if terms.dtype == torch.bool:
            return terms.all(0)
        case "prod":
            return terms.prod(0, dtype=terms.dtype)
        case "max":
            return terms.amax(0)
        case "min":
            return terms.amin(0)


@pytest.mark.parametrize("reduction", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_reduction(dtype, reduction):
    if dtype.is_complex and reduction in ("max", "min"):
        return
    group = (3, 0, 2, 1)
    kept = ReduceScatter(group, (5, 0, 3, 2), dtype, reduction)
    for plain in (AllReduce(group, 10, dtype, reduction), kept):
        terms = {rank: terms_of(dtype, reduction, rank, 10) for rank in group}
        total = reduced(torch.stack([terms[rank] for rank in group]), reduction)
        for i, move in enumerate(algorithms_of(plain)):
            name = POLICIES[i % len(POLICIES)]
            found = results_of(move, terms, f"{move}", name)
            for rank in group:
                wanted = total
                if move.__class__ is ReduceScatter:
                    wanted = total.split(list(kept.counts))[group.index(rank)]
                same(found[rank], wanted)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex128])
def test_every_dtype_travels(dtype):
    group = (2, 0, 1)
    table = ((1, 2, 0), (0, 3, 1), (4, 0, 2))
    for plain in (
        AllGather(group, (3, 3, 3), dtype),
        AllGather(group, (3, 0, 5), dtype),
        AllToAll(group, table, dtype),
        BroadcastFrom(group, 1, 5, dtype),
    ):
        for move in algorithms_of(plain):
            check(move, f"{move}", "random")


def test_rounding_is_the_same_on_all_ranks_and_in_all_orders():
    generator = torch.Generator().manual_seed(3)
    for group in ((0, 1, 2, 3, 4), (4, 0, 2, 1), (1, 0)):
        size = len(group)
        given_ = {r: torch.randn(4 * size, generator=generator) for r in group}
        plain = AllReduce(group, 4 * size, torch.float32)
        scatter = ReduceScatter(group, (4,) * size, torch.float32)
        for move in (*algorithms_of(plain), *algorithms_of(scatter)):
            runs = [results_of(move, given_, s, "random") for s in range(3)]
            for found in runs[1:]:
                for rank in group:
                    same(found[rank], runs[0][rank])
            if isinstance(move, AllReduce):
                for rank in group:
                    same(runs[0][rank], runs[0][group[0]])
            if move in (plain, scatter):
                # Where nothing is chosen, the order of sums is that of the twin.
                results, _ = carry(move, [given_[rank] for rank in group])
                for rank, result in zip(group, results, strict=True):
                    same(runs[0][rank], result)


@settings(max_examples=30, deadline=None)
@given(
    group=st.permutations(range(9)).flatmap(
        lambda p: st.integers(2, 9).map(lambda size: tuple(p[:size]))
    ),
    n=st.integers(0, 40),
    in_place=st.booleans(),
    name=st.sampled_from(POLICIES),
    seed=st.integers(0, 1 << 30),
    data=st.data(),
)
def test_any_all_reduce(group, n, in_place, name, seed, data):
    moves = list(algorithms_of(AllReduce(group, n, torch.int32)))
    check(data.draw(st.sampled_from(moves)), seed, name, in_place)


@settings(max_examples=15, deadline=None)
@given(st.data(), st.integers(2, 5), st.sampled_from(POLICIES), st.integers(0, 1 << 30))
def test_any_uneven_counts(data, size, name, seed):
    group = tuple(range(size))
    counts = st.tuples(*[st.integers(0, 5)] * size)
    table = data.draw(st.tuples(*[counts] * size))
    row = data.draw(counts)
    for plain in (
        AllToAll(group, table, torch.int16),
        AllGather(group, row, torch.int16),
        ReduceScatter(group, row, torch.int16),
    ):
        for move in algorithms_of(plain):
            check(move, seed, name)


def test_verify_sees_a_write_over_what_is_still_sent():
    schedule = compile_move(AllReduce((0, 1), 6, torch.int32, algorithm="exchange"), 0)
    [reduce] = [i for i in schedule.instructions if i.kind is Kind.REDUCE]
    for j, _ in reduce.follows:
        if schedule.instructions[j].kind is Kind.SEND:
            broken = _without(schedule, schedule.instructions.index(reduce), j)
    with pytest.raises(ValueError, match="touch the same bytes in no order"):
        verify(broken, payload_bytes=24, out_bytes=24)


MUTATED = (
    *algorithms_of(AllReduce((0, 1, 2, 3), 12, torch.int32)),
    AllReduce((0, 1, 2), 12, torch.int32, algorithm="doubling"),
    BroadcastFrom((0, 1, 2, 3), 0, 6, torch.int32),
    AllGather((0, 1, 2, 3), (3,) * 4, torch.int32),
    *algorithms_of(ReduceScatter((0, 1, 2, 3), (3,) * 4, torch.int32)),
)


@pytest.mark.parametrize("move", MUTATED, ids=str)
def test_each_wait_is_needed_and_its_lack_is_found(move):
    """Leave out one wait of one rank: some order of events shows it."""
    schedules = {rank: compile_move(move, rank) for rank in move.group}
    num_waits = 0
    for i, instruction in enumerate(schedules[1].instructions):
        for j, _ in instruction.follows:
            num_waits += 1
            broken = {**schedules, 1: _without(schedules[1], i, j)}
            assert any(
                _goes_wrong(move, broken, seed, name)
                for seed in range(40)
                for name in POLICIES
            ), (i, instruction, j)
    assert num_waits


def _without(schedule: Schedule, index: int, waited_for: int) -> Schedule:
    program = list(schedule.instructions)
    kept = tuple(pair for pair in program[index].follows if pair[0] != waited_for)
    program[index] = replace(program[index], follows=kept)
    return replace(schedule, instructions=tuple(program))


def _goes_wrong(
    move: Move, schedules: dict[int, Schedule], seed: int, name: str
) -> bool:
    in_place = isinstance(move, AllReduce | BroadcastFrom)
    payloads = {rank: payload_of(move, rank, "cpu") for rank in move.group}
    found = results_of(
        move, payloads, seed, name, in_place=in_place, schedules=schedules
    )
    return not all(torch.equal(found[r], expected(move, r, "cpu")) for r in found)


def test_the_price_counts_what_the_schedules_send():
    for size in range(2, 7):
        group = tuple(range(size))[::-1]
        for plain in moves_of(group, torch.float32):
            for move in algorithms_of(plain):
                priced: dict[tuple[int, int], int] = {}
                for stage in stages(move):
                    for src, dst, num_bytes in stage.flows:
                        pair = (src, dst)
                        priced[pair] = priced.get(pair, 0) + num_bytes
                real: dict[tuple[int, int], int] = {}
                for rank in group:
                    for step in compile_move(move, rank).instructions:
                        if step.kind is Kind.SEND:
                            pair = (rank, step.peer)
                            real[pair] = real.get(pair, 0) + step.num_bytes
                assert {k: v for k, v in priced.items() if v} == real, move


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_scratch_memory_is_what_is_predicted(size: int) -> None:
    for group in groups(size):
        for plain in moves_of(group, torch.float64):
            for move in algorithms_of(plain):
                for rank in group:
                    taken = compile_move(move, rank).scratch_bytes
                    assert taken == scratch_bytes(move, rank), (move, rank)


def test_large_moves_have_few_instructions():
    group = (0, 1, 2, 3)
    ring = AllReduce(group, 1 << 24, torch.float32)
    assert len(compile_move(ring, 0).instructions) == 12
    for move in algorithms_of(AllReduce(group, 1 << 14, torch.float32)):
        assert len(compile_move(move, 0).instructions) <= 24
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        compile_move.__wrapped__(ring, 0)
        best = min(best, time.perf_counter() - begin)
    assert best < 1e-3
    assert compile_move(ring, 0) is compile_move(replace(ring), 0)


def test_a_large_exchange_is_refused():
    move = AllReduce((0, 1, 2), 1 << 18, torch.float32, algorithm="exchange")
    with pytest.raises(ValueError, match="2097152 bytes of memory, at most 1048576"):
        compile_move(move, 0)


@pytest.mark.prove
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 8])
def test_every_move_over_every_group(size, seed):
    for g, group in enumerate(groups(size)):
        for i, plain in enumerate(moves_of(group, torch.int32)):
            for j, move in enumerate(algorithms_of(plain)):
                in_place = isinstance(move, AllReduce | BroadcastFrom) and seed == 2
                name = POLICIES[(g + i + j + seed) % len(POLICIES)]
                check(move, f"{seed} {group} {i} {j}", name, in_place)
