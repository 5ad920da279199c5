"""Ranks that play random programs until one is killed, and then go on without it.

    found = soak(3, seconds=20, seed=1)

The parent pauses ranks at random (SIGSTOP, SIGCONT) and kills the last one in the end.
All processes of a machine share the monotonic clock, so times compare.
"""

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, cycle

import torch

from placet.boxing.moves import AllReduce
from placet.errors import PeerLost
from placet.torch_private.c10d import TCPStore
from placet.wire.engine.connect import connect_engine
from placet.wire.engine.futures import EngineFuture
from placet.wire.engine.wire import EngineWire
from placet.wire.torch_store import TorchStore
from testing.processes import Running, collect, start_rank
from testing.random_programs import Program, random_program
from tests.wire.program_player import play, play_all

MOVES_END_WITHIN = 30.0
MOST_BYTES = 1 << 18
NUM_PROGRAMS = 40
"""The set of programs is fixed, and so are its keys; their orders are always new."""

SAMPLE_SECONDS = 0.2
NUM_AFTER = 5
LONG_SECONDS = 7200.0


@dataclass(frozen=True)
class Survived:
    """What a survivor saw; times in seconds, those that end in `_at` on the clock.

    Args:
        num_programs, num_moves, wrong: played until the kill.
        samples: (seconds since the start, resident bytes).
        noticed_at: when a move that needs the killed rank failed.
        raised_at: when the program met the error.
        error: that error.
        reform_began_at, reform_ended_at: around `reform`.
        rank, num_ranks: after it.
        num_after, wrong_after: programs played with the ranks that were left.
    """

    num_programs: int
    num_moves: int
    wrong: tuple[str, ...]
    samples: tuple[tuple[float, int], ...]
    noticed_at: float
    raised_at: float
    error: str
    reform_began_at: float
    reform_ended_at: float
    rank: int
    num_ranks: int
    num_after: int
    wrong_after: tuple[str, ...]


@dataclass(frozen=True)
class Soaked:
    """When the last rank was killed, how often ranks were paused, what others saw."""

    killed_at: float
    num_pauses: int
    survivors: tuple[Survived, ...]


def soak(num_ranks: int, *, seconds: float, seed: int, pauses: bool = True) -> Soaked:
    """Run ranks for so long, then kill the last one.

    Args:
        num_ranks: how many ranks to start.
        seconds: from when all play until the kill.
        seed: decides programs, orders and pauses.
        pauses: whether ranks are paused.

    Raises:
        AssertionError: a survivor did not end.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks: list[Running] = []
    killed_at, num_pauses = 0.0, 0
    try:
        for rank in range(num_ranks):
            args = (rank, num_ranks, store.port, seed)
            ranks.append(start_rank(rank, play_until_lost, *args))
        store.set_timeout(timedelta(seconds=60))
        store.wait([f"{rank} plays" for rank in range(num_ranks)])
        end = time.monotonic() + seconds
        rng = random.Random(f"{seed}, pauses")
        while pauses and time.monotonic() < end:
            _pause(rng.choice(ranks), rng.choice((0.001, 0.02, 0.2, 1.0)))
            num_pauses += 1
            time.sleep(min(rng.uniform(0.0, 0.5), max(0.0, end - time.monotonic())))
        time.sleep(max(0.0, end - time.monotonic()))
        killed_at = time.monotonic()
        os.kill(_number(ranks[-1]), signal.SIGKILL)
    finally:
        outcomes = collect(ranks, 60.0 if killed_at else 0.0)
    for rank in range(num_ranks - 1):
        failure = outcomes[rank].failure
        assert failure is None, f"rank {rank}: {failure}"
    survivors = tuple(outcomes[rank].result for rank in range(num_ranks - 1))
    return Soaked(killed_at, num_pauses, survivors)


def play_until_lost(rank: int, num_ranks: int, port: int, seed: int) -> Survived:
    """One rank: play until a peer is lost, re-form, and play on."""
    limit = timedelta(seconds=MOVES_END_WITHIN)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    wire = connect_engine(
        TorchStore(store, "engine"),
        rank,
        num_ranks,
        timeout_seconds=MOVES_END_WITHIN,
        core="native",
    )
    noticed: list[float] = []
    _watch(wire, noticed)
    played: list[tuple[int, list[str]]] = []
    samples: list[tuple[float, int]] = []
    began = time.monotonic()
    try:
        for program in _programs(seed, num_ranks):
            wrong, num_moves = play(wire, program)
            played.append((num_moves, wrong))
            if len(played) == 1:
                store.set(f"{rank} plays", "")
            now = time.monotonic() - began
            if not samples or now > samples[-1][0] + SAMPLE_SECONDS:
                samples.append((now, _resident_bytes()))
    except PeerLost as error:
        raised_at, text = time.monotonic(), str(error)
    same = wire
    reform_began_at = time.monotonic()
    wire.reform(timeout_seconds=10.0)
    reform_ended_at = time.monotonic()
    after = play_all(
        wire,
        (
            random_program(seed, wire.num_ranks, most_bytes=MOST_BYTES)
            for seed in range(NUM_AFTER)
        ),
    )
    assert wire is same
    found = Survived(
        num_programs=len(played),
        num_moves=sum(num for num, _ in played),
        wrong=tuple(text for _, wrong in played for text in wrong),
        samples=tuple(samples),
        noticed_at=noticed[0] if noticed else float("inf"),
        raised_at=raised_at,
        error=text,
        reform_began_at=reform_began_at,
        reform_ended_at=reform_ended_at,
        rank=wire.rank,
        num_ranks=wire.num_ranks,
        num_after=after.num_programs,
        wrong_after=after.wrong + after.hung,
    )
    wire.close()
    return found


def _programs(seed: int, num_ranks: int) -> Iterator[Program]:
    kept = [
        random_program(1000 * seed + i, num_ranks, most_bytes=MOST_BYTES)
        for i in range(NUM_PROGRAMS)
    ]
    for turn, program in zip(count(), cycle(kept)):
        yield replace(program, seed=1_000_000 * seed + turn)


def _watch(wire: EngineWire, noticed: list[float]) -> None:
    """Note when the last rank is lost, by a move that it never submits."""
    if wire.rank == wire.num_ranks - 1:
        return
    move = AllReduce(tuple(range(wire.num_ranks)), 1, torch.float32)
    wire.timeout_seconds = LONG_SECONDS
    future = wire.submit(move, torch.ones(1), key="never ends", notify=True)
    wire.timeout_seconds = MOVES_END_WITHIN
    assert isinstance(future, EngineFuture)
    future.on_done(lambda _: noticed.append(time.monotonic()))


def _pause(running: Running, seconds: float) -> None:
    os.kill(_number(running), signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(_number(running), signal.SIGCONT)


def _number(running: Running) -> int:
    assert running.process.pid is not None
    return running.process.pid


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
