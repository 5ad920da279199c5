"""Every case of a few ranks and collectives, one of each kind."""

from collections.abc import Iterator
from itertools import chain, combinations, permutations, product
from typing import TypeAlias

from testing.wire_model.cases import Calls, Case, Group

Plain: TypeAlias = tuple[tuple[Group, ...], tuple[Calls, ...]]


def all_cases(num_ranks: int, num_collectives: int, *, waits: bool) -> Iterator[Case]:
    """All choices of groups, of each rank's order, and of waits between submissions.

    After each submission but the last, a rank may wait for what it has just submitted;
    at the end it waits for all. Cases that differ only in the collectives' numbers, or
    in where the ring of ranks begins, come once: one is the other with new names.

    Args:
        num_ranks, num_collectives: how many.
        waits: whether ranks may wait before the end.
    """
    ranks = range(num_ranks)
    groups_of_size = (combinations(ranks, size) for size in range(2, num_ranks + 1))
    groups = list(chain.from_iterable(groups_of_size))
    for chosen in product(groups, repeat=num_collectives):
        if list(chosen) != sorted(chosen):
            continue  # the same with other numbers
        own = [[c for c, group in enumerate(chosen) if r in group] for r in ranks]
        for calls in product(*(list(_all_calls(of, waits=waits)) for of in own)):
            plain = chosen, calls
            if plain == min(_renamed(plain, num_ranks)):
                yield Case(chosen, calls)


def _all_calls(own: list[int], *, waits: bool) -> Iterator[Calls]:
    gaps = max(0, len(own) - 1)
    for order in permutations(own):
        for waited in product((False, True) if waits else (False,), repeat=gaps):
            calls: list[int] = []
            for c, then in zip(order, (*waited, False), strict=False):
                calls += [c, ~c] if then else [c]
            calls += [~c for c in order if ~c not in calls]
            yield tuple(calls)


def _renamed(plain: Plain, num_ranks: int) -> Iterator[Plain]:
    groups, calls = plain
    for turn in range(num_ranks):
        turned = [
            tuple(sorted((rank + turn) % num_ranks for rank in group))
            for group in groups
        ]
        for names in permutations(range(len(groups))):
            # Collective c is now called names[c].
            new_groups: list[Group] = [()] * len(groups)
            for c, name in enumerate(names):
                new_groups[name] = turned[c]
            if new_groups != sorted(new_groups):
                continue
            new_calls = [
                tuple(names[call] if call >= 0 else ~names[~call] for call in of_rank)
                for of_rank in calls
            ]
            moved = [new_calls[(rank - turn) % num_ranks] for rank in range(num_ranks)]
            yield tuple(new_groups), tuple(moved)
