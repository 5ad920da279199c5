"""A problem seen by groups of nodes that decide alike, for solvers that try choices.

Tensors whose ends lie in the same groups cost the same: one pattern stands for all.

    cost + rate * memory of an assignment of groups              -> Table.value
    the same for every choice of one group, others fixed         -> Table.options

A rate prices memory (Lagrange): each tensor is then kept or gathered again, whichever
is cheaper together.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from placet.planner.classes import Members, fingerprint
from placet.planner.problem import Assignment, Floats, Indices, Problem

Priced = tuple[float, float, float, float]
"""Cost and kept bytes of a tensor that is kept, and of one that is gathered again."""


@dataclass(frozen=True, eq=False)
class _Pattern:
    """Tensors that are alike under an assignment of groups.

    Args:
        tensors: its members.
        made: (group, slot); read: the same for each consumer.
        late: which consumers read in the backward, if that takes memory.
        is_stored: the producer is a state or the batch.
    """

    tensors: tuple[int, ...]
    made: tuple[int, int]
    read: tuple[tuple[int, int], ...]
    late: tuple[int, ...]
    is_stored: bool
    known: dict[tuple[int, ...], Priced] = field(default_factory=dict)


class Table:
    """A problem by groups of nodes.

    Args:
        problem: with or without a memory limit.
        groups: every node is in one; nodes of one group have equal tables.
    """

    def __init__(self, problem: Problem, groups: Members) -> None:
        self.problem = problem
        self.groups = groups
        self.limit = problem.memory_bytes
        group_of = [0] * len(problem.nodes)
        for g, members in enumerate(groups):
            for n in members:
                group_of[n] = g
        self.patterns = _patterns(problem, group_of, self.limit is not None)
        self.touching: list[list[int]] = [[] for _ in groups]
        for p, pattern in enumerate(self.patterns):
            for g in dict.fromkeys(g for g, _ in (pattern.made, *pattern.read)):
                self.touching[g].append(p)

    def value(self, choices: Sequence[int], rate: float = 0.0) -> tuple[float, float]:
        """The cost and the memory of an assignment of groups."""
        cost = held = 0.0
        for g, members in enumerate(self.groups):
            node = self.problem.nodes[members[0]]
            cost += float(node.costs[choices[g]]) * len(members)
            held += float(node.state_bytes[choices[g]]) * len(members)
        for pattern in self.patterns:
            priced = self._price(pattern, self._layouts(pattern, choices))
            paid, kept = _better(priced, rate)
            cost += paid * len(pattern.tensors)
            held += kept * len(pattern.tensors)
        return cost, held

    def options(
        self, choices: Sequence[int], group: int, rate: float = 0.0
    ) -> tuple[Floats, Floats]:
        """(choices,) cost and memory of what a group decides, with others as given.

        Counts the group's nodes and the tensors that they make or read, no others.
        """
        members = self.groups[group]
        node = self.problem.nodes[members[0]]
        cost = node.costs * len(members)
        held = node.state_bytes * len(members)
        for p in self.touching[group]:
            pattern = self.patterns[p]
            paid, kept = self._columns(pattern, choices, group, rate)
            cost = cost + paid * len(pattern.tensors)
            held = held + kept * len(pattern.tensors)
        return cost, held

    def assignment(self, choices: Sequence[int], rate: float = 0.0) -> Assignment:
        """The assignment of nodes that one of groups stands for."""
        nodes = [0] * len(self.problem.nodes)
        for g, members in enumerate(self.groups):
            for n in members:
                nodes[n] = choices[g]
        again: list[int] = []
        for pattern in self.patterns:
            if pattern.late:
                priced = self._price(pattern, self._layouts(pattern, choices))
                if _gathers(priced, rate):
                    again.extend(pattern.tensors)
        return Assignment(tuple(nodes), frozenset(again))

    def _columns(
        self, pattern: _Pattern, choices: Sequence[int], group: int, rate: float
    ) -> tuple[Floats, Floats]:
        """(choices,) cost and kept bytes of one tensor of a pattern."""
        count = len(self.problem.nodes[self.groups[group][0]].costs)
        ends = []
        for i, (g, slot) in enumerate((pattern.made, *pattern.read)):
            table = self._layout_table(g, is_made=i == 0)
            column = table[:, slot] if g == group else table[choices[g], slot]
            ends.append(np.broadcast_to(column, count))
        if len(ends) == 2 and not pattern.late:
            domain = self.problem.tensors[pattern.tensors[0]].domain
            return domain.prices[ends[0], ends[1]], np.zeros(count)
        rows = zip(*(end.tolist() for end in ends), strict=True)
        found = [_better(self._price(pattern, row), rate) for row in rows]
        values = np.array(found)
        return values[:, 0], values[:, 1]

    def _layouts(self, pattern: _Pattern, choices: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            int(self._layout_table(g, is_made=i == 0)[choices[g], slot])
            for i, (g, slot) in enumerate((pattern.made, *pattern.read))
        )

    def _layout_table(self, group: int, *, is_made: bool) -> Indices:
        node = self.problem.nodes[self.groups[group][0]]
        return node.output_layouts if is_made else node.input_layouts

    def _price(self, pattern: _Pattern, layouts: tuple[int, ...]) -> Priced:
        """What a tensor of a pattern costs and keeps, either way."""
        if layouts not in pattern.known:
            domain = self.problem.tensors[pattern.tensors[0]].domain
            made, *read = layouts
            kept = domain.tree_price(made, tuple(dict.fromkeys(read)))
            if pattern.late:
                late = dict.fromkeys(read[i] for i in pattern.late)
                first = (x for i, x in enumerate(read) if i not in pattern.late)
                again = domain.tree_price(made, tuple(dict.fromkeys(first)))
                again += domain.tree_price(made, tuple(late))
                free = {made} if pattern.is_stored else set()
                sizes = domain.local_bytes
                held = float(sum(sizes[x] for x in set(late) - free))
                least = float(sum(sizes[x] for x in {made} - free))
                pattern.known[layouts] = kept, held, again, least
            else:
                pattern.known[layouts] = kept, 0.0, kept, 0.0
        return pattern.known[layouts]


def _gathers(priced: Priced, rate: float) -> bool:
    kept, held, again, least = priced
    return again + rate * least < kept + rate * held


def _better(priced: Priced, rate: float) -> tuple[float, float]:
    return priced[2:] if _gathers(priced, rate) else priced[:2]


def _patterns(
    problem: Problem, group_of: Sequence[int], counts_memory: bool
) -> tuple[_Pattern, ...]:
    found: dict[Hashable, list[int]] = {}
    for t, tensor in enumerate(problem.tensors):
        ends = ((group_of[n], slot) for n, slot in (tensor.producer, *tensor.consumers))
        late = problem.late_reads[t] if counts_memory else ()
        key = (tuple(ends), late, fingerprint(tensor.domain))
        found.setdefault(key, []).append(t)
    patterns = []
    for members in found.values():
        tensor = problem.tensors[members[0]]
        if not tensor.consumers:
            continue
        made, *read = (
            (group_of[n], slot) for n, slot in (tensor.producer, *tensor.consumers)
        )
        late = problem.late_reads[members[0]] if counts_memory else ()
        stored = not problem.nodes[tensor.producer[0]].signatures
        patterns.append(_Pattern(tuple(members), made, tuple(read), late, stored))
    return tuple(patterns)
