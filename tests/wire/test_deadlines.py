"""Each way to wait in vain, between real processes: the error comes in time, names all.

One start of processes serves all cases; the ranks re-form the group after each.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Semaphore

import pytest
import torch

from placet.boxing.moves import AllReduce
from placet.errors import WireError
from placet.wire.engine.waits import SKEW_SECONDS
from placet.wire.engine.wire import EngineWire
from placet.wire.interface import Future
from testing.engine_ranks import run_engine
from testing.ranks import run_ranks

NUM_RANKS = 3
DEADLINE_SECONDS = 0.4
WITHIN_SECONDS = 1.0
SLACK_SECONDS = 0.5
"""A loaded machine's."""


@dataclass(frozen=True)
class Seen:
    """A rank's error, and how long after its submission it came."""

    text: str
    seconds: float


def submit(wire: EngineWire, key: str, num_elements: int = 4) -> Future:
    """Start an all-reduce over everyone."""
    group = tuple(range(wire.num_ranks))
    move = AllReduce(group, num_elements, torch.float32)
    return wire.submit(move, torch.ones(num_elements), key=key)


def failed(wire: EngineWire, *keys: str, num_elements: int = 4) -> Seen:
    """Submit and wait, key by key, until one fails."""
    found = Seen("not submitted", 0.0)
    for key in keys:
        began = time.monotonic()
        try:
            future = submit(wire, key, num_elements)
        except WireError as error:
            return Seen(f"{type(error).__name__} {error}", 0.0)
        found = outcome(future, began)
        if found.text != "no error":
            break
    return found


def outcome(future: Future, began: float) -> Seen:
    """The error of a move that does not end, and how long after `began` it came."""
    try:
        future.wait()
    except WireError as error:
        return Seen(f"{type(error).__name__} {error}", time.monotonic() - began)
    return Seen("no error", time.monotonic() - began)


def await_word(wire: EngineWire, topic: str) -> None:
    """Until both other ranks have sent a word: without a move, so as if computing."""
    heard = Semaphore(0)
    wire.listen(topic, lambda rank, data: heard.release())
    for _ in range(NUM_RANKS - 1):
        assert heard.acquire(timeout=10.0)


def never_submitted(wire: EngineWire) -> Seen:
    """Rank 1 goes on to the next move; it comes when the others have failed."""
    move = AllReduce((0, 1), 4, torch.float32)
    if wire.rank == 1:
        await_word(wire, "submitted here")
        time.sleep(1.5 * SKEW_SECONDS)  # or no clock could tell that it went on
        wire.submit(move, torch.ones(4), key="next").wait()
        await_word(wire, "failed here")
        return failed(wire, "late")
    began = time.monotonic()
    late = submit(wire, "late")
    if wire.rank == 0:
        wire.submit(move, torch.ones(4), key="next")
    wire.tell(1, "submitted here", b"")
    found = outcome(late, began)
    wire.tell(1, "failed here", b"")
    return found


def other_shape(wire: EngineWire) -> Seen:
    """Rank 1 has five elements where the others have four."""
    return failed(wire, "shaped", num_elements=4 + (wire.rank == 1))


def cycle(wire: EngineWire) -> Seen:
    """Ranks 0 and 1 wait for each other; rank 2 has submitted both."""
    if wire.rank == 2:
        submit(wire, "b")
    return failed(wire, *("ab" if wire.rank != 1 else "ba"))


def stopped(wire: EngineWire) -> Seen:
    """Rank 2 pauses; when it goes on it learns what it has missed."""
    numbers = wire.exchange(b"%d" % os.getpid(), key="process")
    if wire.rank == 2:
        await_word(wire, "ready")
        os.kill(os.getpid(), signal.SIGSTOP)
        return failed(wire, "paused")
    wire.tell(2, "ready", b"")
    found = failed(wire, "paused")
    if wire.rank == 0:
        os.kill(int(numbers[2]), signal.SIGCONT)
    return found


CASES: tuple[tuple[Callable[[EngineWire], Seen], tuple[str, ...]], ...] = (
    (
        never_submitted,
        ("WireTimeout", "'late'", "by ranks 0, 2, not by rank 1", "never submitted"),
    ),
    (
        other_shape,
        ("MoveMismatch", "'shaped'", "ranks 0, 2 submitted AllReduce of 4 ",
         "rank 1 submitted AllReduce of 5 "),
    ),
    (
        cycle,
        ("WireTimeout", "application cycle", "rank 0 waits for 'a' before it submits "
         "'b'", "rank 1 waits for 'b' before it submits 'a'"),
    ),
    (
        stopped,
        ("WireTimeout", "'paused'", "by ranks 0, 1, not by rank 2",
         "rank 2 gave no answer", "dead or stopped"),
    ),
)  # fmt: skip
"""What happens, and what the error says on every rank."""


def play_cases(wire: EngineWire) -> list[Seen]:
    """All cases, each on a whole group."""
    wire.timeout_seconds = DEADLINE_SECONDS
    found = []
    for case, _ in CASES:
        found.append(case(wire))
        over = f"{case.__name__} is over"
        for rank in {0, 1, 2} - {wire.rank}:
            wire.tell(rank, over, b"")
        await_word(wire, over)  # re-forming would end what others still wait for
        wire.reform(10.0)
    assert submit(wire, "in the end").wait().tolist() == [3.0] * 4
    return found


@pytest.mark.procs
def test_each_rank_learns_in_time_why_it_waits():
    results = run_ranks(NUM_RANKS, play_cases, carrier="native", timeout=30)
    for number, (case, words) in enumerate(CASES):
        for rank, result in enumerate(results):
            assert result is not None
            seen = result[number]
            print(f"\n{case.__name__}, rank {rank}, {seen.seconds:.2f} s: {seen.text}")
            most = DEADLINE_SECONDS + WITHIN_SECONDS + SLACK_SECONDS
            assert seen.seconds < most, (case, rank)
            assert not [word for word in words if word not in seen.text], seen.text


def wait_across(wire: EngineWire) -> str:
    """Two ranks wait for each other; the deadline of rank 1 passes later."""
    wire.timeout_seconds = 0.2 if wire.rank == 0 else 0.4
    return failed(wire, "ab"[wire.rank]).text


def test_a_cycle_is_seen_though_the_other_rank_has_given_up_just_before():
    for text in run_engine(2, wait_across):
        assert "application cycle: rank" in str(text)
