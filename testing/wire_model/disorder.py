"""How often ranks hang that submit now and then in another order, by kind of wire.

Each rank takes the collectives in order, but skips the next one with a small chance and
comes back to it afterwards. Two kinds of wire that can hang:

    one queue           a rank works on its oldest collective alone ("Single")
    streams with syncs  any collective may go on, but now and then a rank's device waits
                        for all that it has begun, before it begins anything else
                        ("StreamWithSync"); allocating device memory does that

Such a sync is not a wait of the program's. The engine's moves are on no device's queue,
so a sync does not wait for them, and order means nothing to it: it hangs in no cell.

Source: DFCCL (arXiv:2303.06324v2), its deadlock simulator; differs in that a case is
followed to its end where theirs tests pairs of ranks as they hang.
"""

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

from testing.wire_model.cases import Calls, Case, Group
from testing.wire_model.collectives import run_case

Mode: TypeAlias = Literal["one queue", "streams with syncs"]

SYNC_CHANCE = 0.05
"""After how many submissions a device syncs; a training step allocates now and then."""


@dataclass(frozen=True)
class Cell:
    """One cell of the table.

    Args:
        mode: the wire that ours is compared with.
        groups: of each collective, its ranks.
        num_ranks: how many ranks there are.
        disorder: the chance to skip.
    """

    mode: Mode
    groups: tuple[Group, ...]
    num_ranks: int
    disorder: float


@dataclass(frozen=True)
class Counted:
    """Of so many rounds, how many hung on each wire."""

    num_rounds: int
    hung: int
    ours_hung: int


def one_group(num_ranks: int, num_collectives: int) -> tuple[Group, ...]:
    """Collectives of all ranks."""
    return (tuple(range(num_ranks)),) * num_collectives


def grid(num_ranks: int, row: int, num_collectives: int) -> tuple[Group, ...]:
    """Every rank alternates between its row and its column of a grid.

    Args:
        num_ranks: a multiple of `row`.
        row: ranks in a row.
        num_collectives: of each rank.
    """
    rows = [tuple(range(r, r + row)) for r in range(0, num_ranks, row)]
    columns = [tuple(range(c, num_ranks, row)) for c in range(row)]
    return tuple(
        group for i in range(num_collectives) for group in (rows, columns)[i % 2]
    )


def skipping(rng: random.Random, own: list[int], disorder: float) -> list[int]:
    """A rank's order: each time the next one left, or one further with this chance."""
    order = list(own)
    for place in range(len(order) - 1):
        taken = place
        while rng.random() < disorder and taken < len(order) - 1:
            taken += 1
        if taken > place:
            order.insert(place, order.pop(taken))
    return order


def syncing(rng: random.Random, order: list[int], chance: float) -> Calls:
    """Calls that submit in this order, with syncs: waits for all submitted so far."""
    calls: list[int] = []
    begun: list[int] = []
    for c in order:
        calls.append(c)
        begun.append(c)
        if rng.random() < chance:
            calls += [~other for other in begun]
            begun = []
    return tuple(calls)


def count(cell: Cell, num_rounds: int, seed: int = 0) -> Counted:
    """Draw so many rounds of a cell and follow each on both wires."""
    rng = random.Random(f"{seed} {cell.num_ranks} {cell.disorder} {cell.mode}")
    own: list[list[int]] = [[] for _ in range(cell.num_ranks)]
    for c, group in enumerate(cell.groups):
        for rank in group:
            own[rank].append(c)
    hung = ours_hung = 0
    for _ in range(num_rounds):
        orders = [skipping(rng, of_rank, cell.disorder) for of_rank in own]
        case = Case(cell.groups, tuple(map(tuple, orders)))
        ours_hung += run_case(case, "preemptive").deadlocked
        if cell.mode == "one queue":
            hung += run_case(case, "in-order").deadlocked
        else:
            calls = tuple(syncing(rng, order, SYNC_CHANCE) for order in orders)
            hung += run_case(Case(cell.groups, calls), "preemptive").deadlocked
    return Counted(num_rounds, hung, ours_hung)


def expected(num_ranks: int, num_collectives: int, disorder: float) -> float:
    """How likely one queue hangs, where all collectives are of all ranks.

    It hangs once orders differ. So it ends if nobody ever skips; that all skip alike is
    too rare to matter.
    """
    nobody: float = (1 - disorder) ** (num_ranks * (num_collectives - 1))
    return 1 - nobody
