"""Who waits for whom, and what is at the root of it: a pure search over a small graph.

    rank r  --waits for a collective that rank m has not submitted-->  rank m

A rank waits for *all* the missing members, so a cycle in this graph never ends: it is
the application's, since the engine itself takes any order. Where there is none, every
path ends at a root: a rank that waits for nothing, gives no answer, or waits for bytes
that are under way.

# NOTE [Held ranks]
A rank may stand still without a `wait()` of ours: DDP's backward() waits in C++. So one
that waits for nothing, but has a move pending that others did not submit, may be held
by it; or it computes. That counts as a wait only where nothing surer is found.

Source: DFCCL (arXiv:2303.06324 v2), the deadlock test of its simulator: a rank g and
the hung ranks H are stuck if submitted_undone(g) meets unsubmitted(H), and
unsubmitted(g) meets submitted_undone(H). Differs in that the ranks of the cycle, in
order, are the answer, and that roots other than a cycle are told apart.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

from placet.wire.engine.calls import differ_in_place, differ_in_what

Called: TypeAlias = tuple[str, tuple[int, ...]]
"""What tells one collective from another: its key and its group."""


class Cause(StrEnum):
    """Why a collective does not end; the first that holds is told."""

    OTHER_MOVE = "another move under the same key"
    OTHER_GROUP = "the same key over another group"
    OTHER_TENSOR = "one call with other tensors"
    OTHER_PLACE = "one call from two places"
    CYCLE = "an application cycle"
    SILENT = "a dead or stopped rank"
    HELD = "moves that only some ranks submitted"
    NEVER = "never submitted"
    LATE = "not submitted yet"
    UNKNOWN = "a rank that was not asked"
    UNDER_WAY = "bytes under way"


IN_TWO_WAYS = (Cause.OTHER_TENSOR, Cause.OTHER_PLACE)
"""One call of a program, which is two keys on the wire."""


SKEW_SECONDS = 0.1
"""Ranks answer one after the other, so their ages cannot be compared more finely."""


@dataclass(frozen=True)
class Situation:
    """What is known of a set of ranks at one moment.

    Args:
        texts: for each collective, what those that are not done with it submitted.
        submitted: for each collective, the ranks known to have submitted it.
        waits: for each rank whose program stands still, for what.
        ages_seconds: how long ago each collective was first submitted.
        last_seconds: how long ago each rank last submitted anything.
        reported: ranks that answered.
        silent: ranks that were asked and did not.
    """

    texts: Mapping[Called, Mapping[int, str]]
    submitted: Mapping[Called, frozenset[int]]
    waits: Mapping[int, Called]
    ages_seconds: Mapping[Called, float]
    last_seconds: Mapping[int, float]
    reported: frozenset[int]
    silent: frozenset[int]

    def missing(self, called: Called) -> tuple[int, ...]:
        """Members that are not known to have submitted a collective."""
        there = self.submitted.get(called, frozenset())
        return tuple(m for m in called[1] if m not in there)

    @cached_property
    def held(self) -> Mapping[int, Called]:
        """What may hold ranks that wait for nothing; see NOTE [Held ranks].

        Of several moves one that a waiting rank lacks, the oldest.
        """
        found: dict[int, Called] = {}
        oldest = sorted(self.texts, key=lambda c: -self.ages_seconds.get(c, 0.0))
        lacking = [(called, self.missing(called)) for called in oldest]
        lacking.sort(key=lambda each: not any(m in self.waits for m in each[1]))
        for called, missing in lacking:
            for rank in self.texts[called] if missing else ():
                if rank not in self.waits:
                    found.setdefault(rank, called)
        return found

    @cached_property
    def stands(self) -> Mapping[int, Called]:
        """What each rank waits for, or what may hold it."""
        return {**self.held, **self.waits}

    def other_call(self, called: Called, rank: int) -> tuple[Called, Cause] | None:
        """The same call, made in another way, at which `rank` stands; and how."""
        other = self.stands.get(rank)
        if other is None or other[1] != called[1]:
            return None
        if differ_in_what(called[0], other[0]):
            return other, Cause.OTHER_TENSOR
        if differ_in_place(called[0], other[0]):
            return other, Cause.OTHER_PLACE
        return None

    def other_group(self, called: Called, rank: int) -> Called | None:
        """The same key over another group, submitted by `rank` and stuck as well.

        One that all its members submitted is none of it: it will end.
        """
        for other in self.texts:
            is_other = other[0] == called[0] and other[1] != called[1]
            if is_other and rank in self.submitted[other] and self.missing(other):
                return other
        return None


@dataclass(frozen=True)
class Found:
    """The cause of a wait.

    Args:
        cause: which it is.
        called: the collective that it is about.
        ranks: who causes it; of a cycle its ranks, in order, each waiting for the next.
        path: from the rank that asks to the one that waits for `called`.
    """

    cause: Cause
    called: Called
    ranks: tuple[int, ...]
    path: tuple[int, ...]


def find(situation: Situation, rank: int) -> Found:
    """Why what `rank` waits for does not end; `rank` must be one that waits.

    What is wrong with its own collective goes first, then one call made in two ways,
    then a cycle, then the roots in the order of `Cause`, the nearest first.
    """
    own = situation.waits[rank]
    paths = _paths(situation, rank)
    found = list(_roots(situation, paths))
    wrong = (Cause.OTHER_MOVE, Cause.OTHER_GROUP)
    first = [f for f in found if f.called == own and f.cause in wrong]
    first = first or [f for f in found if f.cause in IN_TWO_WAYS]
    if first:
        return min(first, key=_order)
    waiting = [rank for rank in paths if rank in situation.waits]
    cycle = _cycle(situation, waiting)
    if cycle:
        path = paths[cycle[0]]
        return Found(Cause.CYCLE, situation.waits[cycle[0]], cycle, path)
    held = _cycle(situation, list(paths))
    if held:
        called, path = situation.stands[held[0]], paths[held[0]]
        found.append(Found(Cause.HELD, called, held, path))
    return min(found, key=_order)


def _order(found: Found) -> tuple[int, int]:
    return list(Cause).index(found.cause), len(found.path)


def _paths(situation: Situation, rank: int) -> dict[int, tuple[int, ...]]:
    """The ranks that wait, as reached from `rank`, nearest first; and how."""
    paths: dict[int, tuple[int, ...]] = {rank: (rank,)}
    queue = deque([rank])
    while queue:
        here = queue.popleft()
        for there in situation.missing(situation.stands[here]):
            if there in situation.stands and there not in paths:
                paths[there] = (*paths[here], there)
                queue.append(there)
    return paths


def _roots(
    situation: Situation, paths: Mapping[int, tuple[int, ...]]
) -> Iterator[Found]:
    """All that could be the cause, cycles apart; at least one where there is none."""
    seen: set[Called] = set()
    for rank, path in paths.items():
        called = situation.stands[rank]
        if called in seen:
            continue
        seen.add(called)
        odd = _odd_ones(situation.texts.get(called, {}))
        if odd:
            yield Found(Cause.OTHER_MOVE, called, odd, path)
        missing = situation.missing(called)
        if not missing:
            yield Found(Cause.UNDER_WAY, called, called[1], path)
        causes: dict[Cause, list[int]] = {}
        for member in missing:
            other = situation.other_call(called, member)
            # Only if neither has made the other's: else it is two calls.
            if other and rank in situation.missing(other[0]):
                causes.setdefault(other[1], []).append(member)
            if situation.other_group(called, member):
                causes.setdefault(Cause.OTHER_GROUP, []).append(member)
            if member not in situation.waits:
                cause = _of_idle(situation, called, member)
                causes.setdefault(cause, []).append(member)
        for cause, ranks in causes.items():
            yield Found(cause, called, tuple(ranks), path)


def _of_idle(situation: Situation, called: Called, member: int) -> Cause:
    """Why a member that waits for nothing has not submitted a collective."""
    if member in situation.silent:
        return Cause.SILENT
    if member not in situation.reported:
        return Cause.UNKNOWN
    last = situation.last_seconds.get(member)
    age = situation.ages_seconds.get(called, 0.0)
    went_on = last is not None and last + SKEW_SECONDS < age
    return Cause.NEVER if went_on else Cause.LATE


def _odd_ones(texts: Mapping[int, str]) -> tuple[int, ...]:
    """Ranks that differ from most, or from the lowest rank's where none are most."""
    if len(set(texts.values())) < 2:
        return ()
    said = [texts[rank] for rank in sorted(texts)]
    usual = max(said, key=said.count)
    return tuple(sorted(rank for rank, text in texts.items() if text != usual))


def _cycle(situation: Situation, ranks: list[int]) -> tuple[int, ...]:
    """A shortest cycle through the first of `ranks` that lies on one, or ()."""
    waiting = set(ranks)
    stuck = {
        rank: [m for m in situation.missing(situation.stands[rank]) if m in waiting]
        for rank in ranks
    }
    # Take away, again and again, whoever waits for none of the rest: what remains
    # leads into a cycle, so the search below is only made where it succeeds.
    free = [rank for rank, targets in stuck.items() if not targets]
    while free:
        for rank in free:
            del stuck[rank]
        for rank in stuck:
            stuck[rank] = [m for m in stuck[rank] if m in stuck]
        free = [rank for rank, targets in stuck.items() if not targets]
    for rank in stuck:
        way = _way_back(stuck, rank)
        if way:
            return way
    return ()


def _way_back(edges: Mapping[int, list[int]], rank: int) -> tuple[int, ...]:
    """A shortest way from `rank` to itself, without its end; () if there is none."""
    ways: dict[int, tuple[int, ...]] = {rank: (rank,)}
    queue = deque([rank])
    while queue:
        here = queue.popleft()
        for there in edges[here]:
            if there == rank:
                return ways[here]
            if there not in ways:
                ways[there] = (*ways[here], there)
                queue.append(there)
    return ()
