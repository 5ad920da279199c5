"""What ranks ask of the wire, as values: groups, and the calls each rank makes.

    case = Case(groups=((0, 1), (0, 1)), calls=((0, 1, wait(0)), (1, 0)))

Two collectives, both between ranks 0 and 1. Rank 0 submits collective 0, then 1, then
waits for 0; rank 1 submits them in the other order. A call is a number: c submits
collective c, `wait(c)` (which is ~c) blocks until it is done.

# NOTE [Application cycles]
No wire can help if one rank waits for A before it submits B, and another waits for B
before it submits A. Say that d *needs* c if some rank waits for c before it submits d.
If the needs have no cycle, order the collectives by them: all members come to the first
one, so it ends, then to the second, and so on. If they have one, none of the
collectives on it can ever be submitted by all. So a wire that frees its users from
order must finish exactly the cases without such a cycle. -> needs_of, cycle_of
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Group: TypeAlias = tuple[int, ...]
Calls: TypeAlias = tuple[int, ...]


def wait(collective: int) -> int:
    """The call that blocks until a collective is done; see the module's text."""
    return ~collective


@dataclass(frozen=True)
class Case:
    """Groups and calls.

    Args:
        groups: of each collective, the ranks that take part.
        calls: of each rank, what it calls, in order; it submits each collective that
            has it in its group once.
    """

    groups: tuple[Group, ...]
    calls: tuple[Calls, ...]

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.calls)


@dataclass(frozen=True)
class Need:
    """`rank` waits for `waited` before it submits `submitted`."""

    rank: int
    waited: int
    submitted: int

    def __str__(self) -> str:
        who = f"rank {self.rank}"
        return f"{who} waits for {self.waited} before it submits {self.submitted}"


def needs_of(case: Case) -> list[Need]:
    """Every need of a case, also those that follow from others."""
    needs = []
    for rank, calls in enumerate(case.calls):
        waited: list[int] = []
        for call in calls:
            if call < 0:
                waited.append(~call)
            else:
                needs += [Need(rank, other, call) for other in waited]
    return needs


def has_cycle(case: Case) -> bool:
    """Whether the needs of a case have a cycle; sets are bits of a number here."""
    needed = [0] * len(case.groups)
    for calls in case.calls:
        waited = 0
        for call in calls:
            if call < 0:
                waited |= 1 << ~call
            else:
                needed[call] |= waited
    left = (1 << len(needed)) - 1
    while left:
        free = 0
        for c, need in enumerate(needed):
            if left >> c & 1 and not need & left:
                free |= 1 << c
        if not free:
            return True
        left ^= free
    return False


def cycle_of(case: Case) -> tuple[Need, ...]:
    """The needs on one cycle, each the reason for the next; () where there is none."""
    if not has_cycle(case):
        return ()
    why = {(need.submitted, need.waited): need for need in needs_of(case)}
    needed: dict[int, set[int]] = {}
    for submitted, waited in why:
        needed.setdefault(submitted, set()).add(waited)
    # What needs nothing that is left is no part of a cycle. From what remains, going
    # on to something needed must come back to where it has been.
    left = set(needed)
    while free := {c for c in left if not needed[c] & left}:
        left -= free
    at, path = min(left), [min(left)]
    while True:
        at = min(needed[at] & left)
        if at in path:
            break
        path.append(at)
    path = path[path.index(at) :]
    pairs = zip(path, [*path[1:], path[0]], strict=True)
    return tuple(why[pair] for pair in pairs)


def random_case(
    rng: random.Random, num_ranks: int, num_collectives: int, wait_chance: float = 0.5
) -> Case:
    """Overlapping groups, an order of its own on each rank, waits without a cycle.

    A rank waits for c only once it has submitted all its collectives below c, so every
    need is of a lower number by a higher one: there can be no cycle. (Groups and orders
    are random, so that numbers mean nothing else.)

    Args:
        rng: where chance comes from.
        num_ranks, num_collectives: how many.
        wait_chance: the chance of a wait wherever one may stand. What is left is waited
            for at the end.
    """
    groups = []
    for _ in range(num_collectives):
        size = 2 + int(rng.random() * (num_ranks - 1))
        groups.append(tuple(sorted(rng.sample(range(num_ranks), size))))
    members: list[list[int]] = [[] for _ in range(num_ranks)]
    for c, group in enumerate(groups):
        for rank in group:
            members[rank].append(c)
    calls = tuple(_random_calls(rng, own, wait_chance) for own in members)
    return Case(tuple(groups), calls)


def _random_calls(rng: random.Random, own: list[int], wait_chance: float) -> Calls:
    chance = rng.random
    order = sorted(own, key=lambda _: chance())
    lowest_from = [1 << 30] * (len(order) + 1)  # the lowest from each place on
    for place in range(len(order) - 1, -1, -1):
        lowest_from[place] = min(order[place], lowest_from[place + 1])
    calls: list[int] = []
    pending: list[int] = []
    for place, c in enumerate(order):
        calls.append(c)
        pending.append(c)
        limit = lowest_from[place + 1]
        for other in pending[:]:
            if other < limit and chance() < wait_chance:
                calls.append(~other)
                pending.remove(other)
    calls += [~c for c in pending]
    return tuple(calls)


def with_cycle(rng: random.Random, case: Case, length: int = 2) -> Case:
    """A case in whose calls some ranks now wait for one another, round a cycle.

    New collectives x[0], x[1], ...; the i-th of some ranks waits for x[i] before it
    submits x[i + 1]. They stand at random places of what the case had.

    Raises:
        ValueError: the cycle needs more ranks than there are.
    """
    if not 2 <= length <= case.num_ranks:
        raise ValueError(f"a cycle of {length} in {case.num_ranks} ranks: 2 .. ranks")
    ranks = rng.sample(range(case.num_ranks), length)
    first = len(case.groups)
    groups = list(case.groups)
    calls = [list(of_rank) for of_rank in case.calls]
    for i, rank in enumerate(ranks):
        # Members of x[i]: this rank, which waits for it, and the one before, which
        # submits it too late.
        groups.append((rank, ranks[i - 1]))
        mine, after = first + i, first + (i + 1) % length
        _insert_in_order(rng, calls[rank], (mine, wait(mine), after))
    return Case(tuple(groups), tuple(map(tuple, calls)))


def _insert_in_order(
    rng: random.Random, calls: list[int], extra: Sequence[int]
) -> None:
    places = sorted(rng.randrange(len(calls) + 1) for _ in extra)
    for shift, (place, call) in enumerate(zip(places, extra, strict=True)):
        calls.insert(place + shift, call)
