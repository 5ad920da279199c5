"""Times messages between pairs of ranks, while all pairs send at once."""

import json
import time
from collections.abc import Callable, Sequence

import torch

from placet.boxing.moves import AllReduce, AllToAll
from placet.job.link_fit import LARGE_BYTES, Pair, Timed
from placet.wire.interface import Wire

SIZES = (1 << 10, 1 << 16, LARGE_BYTES, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of the messages; the last are left out where they would take too long."""

LONGEST_SECONDS = 1.0
"""No size is begun whose messages would take longer."""

SIZE_SECONDS = 0.15
FEWEST, MOST = 5, 15
"""Each size is repeated for so long, within these numbers."""

SMALL_CALLS = 10
"""Small messages go so many times in a row: a barrier's end is not that sharp."""


def time_pairs(
    wire: Wire, pairs: Sequence[Pair], name: str
) -> dict[Pair, tuple[Timed, ...]]:
    """Time messages of growing size between pairs of ranks, both ways, all at once.

    Every rank of the wire calls it, also one without a partner, and learns all times.

    Args:
        wire: between all ranks.
        pairs: each rank is in one of them at most.
        name: tells this round from others.
    """
    mine = _time_round(wire, pairs, name)
    given = json.dumps([[t.num_bytes, *t.seconds] for t in mine]).encode()
    of_rank = [
        [Timed(int(size), tuple(seconds)) for size, *seconds in json.loads(found)]
        for found in wire.exchange(given, key=f"calibrate.{name}")
    ]
    return {(a, b): slower(of_rank[a], of_rank[b]) for a, b in pairs}


def slower(ours: Sequence[Timed], theirs: Sequence[Timed]) -> tuple[Timed, ...]:
    """A pair's times: each message ends when both have what they were sent."""
    return tuple(
        Timed(a.num_bytes, tuple(map(max, a.seconds, b.seconds)))
        for a, b in zip(ours, theirs, strict=True)
    )


def _time_round(wire: Wire, pairs: Sequence[Pair], name: str) -> list[Timed]:
    """This rank's times of a round; all ranks take part, also without a partner."""
    found = []
    for size in SIZES:
        move = _swap(pairs, size, wire.num_ranks)
        num_calls = SMALL_CALLS if size < LARGE_BYTES else 1
        timed = _timer(wire, move, f"calibrate.{name}.{size}", num_calls)
        expected = _slowest(wire, timed())
        repeats = int(SIZE_SECONDS / (expected * num_calls))
        repeats = max(FEWEST, min(MOST, repeats))
        found.append(Timed(size, tuple(timed() for _ in range(repeats))))
        if size > LARGE_BYTES and 4 * expected > LONGEST_SECONDS:
            break  # the next size has four times the bytes
    return found


def _timer(wire: Wire, move: AllToAll, key: str, num_calls: int) -> Callable[[], float]:
    """Gives a function that runs the move and returns this rank's seconds a call."""
    given = torch.zeros(sum(move.sends(wire.rank)), dtype=move.dtype)
    out = torch.zeros(sum(move.receives(wire.rank)), dtype=move.dtype)

    def timed() -> float:
        _slowest(wire, 0.0)  # all begin together
        began = time.perf_counter()
        for _ in range(num_calls):
            wire.submit(move, given, key=key, out=out).wait()
        return (time.perf_counter() - began) / num_calls

    return timed


def _swap(pairs: Sequence[Pair], num_bytes: int, num_ranks: int) -> AllToAll:
    """Each pair sends so much to each other, nobody else sends anything."""
    counts = [[0] * num_ranks for _ in range(num_ranks)]
    for a, b in pairs:
        counts[a][b] = counts[b][a] = num_bytes
    group = tuple(range(num_ranks))
    return AllToAll(group, tuple(map(tuple, counts)), torch.uint8)


def _slowest(wire: Wire, seconds: float) -> float:
    """The largest of all ranks' times; nobody goes on before all are here."""
    move = AllReduce(tuple(range(wire.num_ranks)), 1, torch.float64, "max")
    given = torch.tensor([seconds], dtype=torch.float64)
    return float(wire.submit(move, given, key="calibrate.slowest").wait())
