"""Which collectives end, if a collective is one step: the coarsest model of a wire.

    preemptive   a collective ends once all its members have submitted it
    in-order     ... once it is also the oldest unfinished one on each of them, as on a
                 queue that works on one thing at a time

Whatever can happen stays possible until it happens, in both. So every schedule comes to
the same end, and following one tells all: nothing here is chosen at random.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from testing.wire_model.cases import Case

Discipline: TypeAlias = Literal["preemptive", "in-order"]


@dataclass(frozen=True)
class End:
    """How a case ended.

    Args:
        done: of each collective, whether it ended.
        places: of each rank, how many calls it got through.
    """

    done: tuple[bool, ...]
    places: tuple[int, ...]

    @property
    def deadlocked(self) -> bool:
        """Whether something was left undone."""
        return not all(self.done)


def run_case(case: Case, discipline: Discipline) -> End:
    """Follow a case until nothing more can happen; time in proportion to its calls."""
    missing = [len(group) for group in case.groups]
    # In order: a collective counts a member once it is that member's oldest. The
    # queues of the ranks, and how far each is done:
    queues: list[list[int]] = [[] for _ in case.calls]
    heads = [0] * len(queues)
    places = [0] * len(queues)
    in_order = discipline == "in-order"
    work = list(range(len(queues)))  # ranks that may be able to go on
    while work:
        rank = work.pop()
        calls, queue, place = case.calls[rank], queues[rank], places[rank]
        while place < len(calls):
            call = calls[place]
            if call < 0:
                if missing[~call] > 0:
                    break
            elif in_order:
                queue.append(call)
                if len(queue) == heads[rank] + 1:
                    _count(call, case, missing, queues, heads, work)
            else:
                missing[call] -= 1
                if not missing[call]:
                    work += case.groups[call]
            place += 1
        places[rank] = place
    return End(tuple(m == 0 for m in missing), tuple(places))


def _count(
    call: int,
    case: Case,
    missing: list[int],
    queues: list[list[int]],
    heads: list[int],
    work: list[int],
) -> None:
    # One more member has `call` at its head; if it was the last, all go on to the next.
    counted = [call]
    while counted:
        c = counted.pop()
        missing[c] -= 1
        if missing[c]:
            continue
        for rank in case.groups[c]:
            heads[rank] += 1
            work.append(rank)
            if heads[rank] < len(queues[rank]):
                counted.append(queues[rank][heads[rank]])


@dataclass(frozen=True)
class Hung:
    """What a rank that cannot go on has submitted in vain, and not submitted."""

    rank: int
    submitted: frozenset[int]
    unsubmitted: frozenset[int]


def hung_ranks(case: Case, end: End) -> Iterator[Hung]:
    """The ranks that did not get through their calls."""
    for rank, (calls, place) in enumerate(zip(case.calls, end.places, strict=True)):
        if place < len(calls):
            came = frozenset(c for c in calls[:place] if c >= 0 and not end.done[c])
            rest = frozenset(c for c in calls[place:] if c >= 0)
            yield Hung(rank, came, rest)


def wait_for_test(hung: Iterable[Hung]) -> tuple[int, ...]:
    """The hung ranks that wait for another while it waits for them; () for none.

    With S(g) what rank g has submitted in vain, U(g) what it has not submitted, and H
    the other hung ranks:  S(g) & U(H) != {}  and  U(g) & S(H) != {}.

    Source: DFCCL (arXiv:2303.06324v2), the deadlock test of its simulator.
    """
    found = []
    everyone = list(hung)
    for one in everyone:
        others = [other for other in everyone if other.rank != one.rank]
        late = frozenset[int]().union(*(other.unsubmitted for other in others))
        there = frozenset[int]().union(*(other.submitted for other in others))
        if one.submitted & late and one.unsubmitted & there:
            found.append(one.rank)
    return tuple(found)
