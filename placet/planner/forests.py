"""Moves of many groups at once: the best choices along a forest, in one pass.

Where a layout passes through a row of operators, no operator gains by a change that is
its own alone. So all are changed together. Each tensor, with producer p and readers
c_1 ... c_k, counts for the moment as pairs

    cost = sum_i w price(made by p -> read by c_i),    w drawn from [1/k, 1]

(1 as if every reader got boxings of its own, 1/k as if all shared them). A random
forest of pairs, dear ones first, is kept free; the other end of every other pair stays
as it is. Then the cheapest choices of a whole tree are found exactly, leaves first

    u_c(l) = min over choices of c that read l: cost_c + what its children say
    p hears  min over l: w price(made -> l) + u_c(l)                    -> _settle

and what comes out starts a descent in true costs, which alone decide whether the move
is kept                                                                 -> improve
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placet.planner.descent import Descended, descend
from placet.planner.problem import Floats, Indices
from placet.planner.table import Table


@dataclass(frozen=True, eq=False)
class _Pair:
    """A tensor's producer and one of its readers.

    Args:
        made, read: (group, slot).
        prices: (layouts made, layouts read) of all the tensors that it stands for.
        sharing: how many readers the tensor has.
    """

    made: tuple[int, int]
    read: tuple[int, int]
    prices: Floats
    sharing: int


def improve(
    table: Table,
    found: Descended,
    *,
    patience: int,
    seed: int = 0,
    deadline: float,
    wanted: float = -np.inf,
) -> Descended:
    """Moves along random forests until nothing has been gained for a while.

    Args:
        patience: how many moves in a row may fail.
        deadline: of `time.monotonic`.
        wanted: a cost that is good enough.
    """
    random = np.random.default_rng(seed)
    pairs = _pairs(table)
    failed = 0
    value = found.cost + found.rate * found.memory_bytes
    while failed < patience and time.monotonic() < deadline and found.cost > wanted:
        start = _moved(table, pairs, found, random)
        again = descend(table, start, rate=found.rate, deadline=deadline)
        new = again.cost + found.rate * again.memory_bytes
        failed += 1
        if new < value - 1e-6 * abs(value):
            failed = 0
        if new < value:
            found, value = again, new
    return found


def _pairs(table: Table) -> list[_Pair]:
    pairs = []
    for pattern in table.patterns:
        domain = table.problem.tensors[pattern.tensors[0]].domain
        prices = domain.prices * len(pattern.tensors)
        readers = list(dict.fromkeys(pattern.read))
        pairs += [_Pair(pattern.made, r, prices, len(readers)) for r in readers]
    return [pair for pair in pairs if pair.made[0] != pair.read[0]]


def _moved(
    table: Table, pairs: Sequence[_Pair], found: Descended, random: np.random.Generator
) -> list[int]:
    """The choices after one move."""
    weights = [float(random.uniform(1 / pair.sharing, 1)) for pair in pairs]
    dear = [
        float(p.prices[np.isfinite(p.prices)].max()) * random.uniform() for p in pairs
    ]
    root = list(range(len(table.groups)))

    def top(group: int) -> int:
        while root[group] != group:
            root[group] = root[root[group]]
            group = root[group]
        return group

    edges: list[list[int]] = [[] for _ in table.groups]
    costs = [_own(table, g, found.rate) for g in range(len(table.groups))]
    for i in sorted(range(len(pairs)), key=lambda i: -dear[i]):
        pair, (made, read) = pairs[i], (pairs[i].made[0], pairs[i].read[0])
        if top(made) != top(read):
            root[top(made)] = top(read)
            edges[made].append(i)
            edges[read].append(i)
            continue
        here = _column(table, pair.made, made=True)
        there = _column(table, pair.read, made=False)
        costs[made] += weights[i] * pair.prices[here, there[found.choices[read]]]
        costs[read] += weights[i] * pair.prices[here[found.choices[made]], there]
    return _settle(table, pairs, weights, edges, costs)


def _own(table: Table, group: int, rate: float) -> Floats:
    members = table.groups[group]
    node = table.problem.nodes[members[0]]
    cost: Floats = (node.costs + rate * node.state_bytes) * len(members)
    return cost


def _column(table: Table, end: tuple[int, int], *, made: bool) -> Indices:
    """(choices,) the layout of a slot."""
    node = table.problem.nodes[table.groups[end[0]][0]]
    column: Indices = (node.output_layouts if made else node.input_layouts)[:, end[1]]
    return column


def _settle(
    table: Table,
    pairs: Sequence[_Pair],
    weights: Sequence[float],
    edges: Sequence[Sequence[int]],
    costs: list[Floats],
) -> list[int]:
    """The cheapest choices of every tree: leaves first, then back from the roots."""
    order: list[tuple[int, int]] = []  # (group, the pair to its parent or -1)
    seen: set[int] = set()
    for start in range(len(edges)):
        stack = [] if start in seen else [(start, -1)]
        seen.add(start)
        while stack:
            group, up = stack.pop()
            order.append((group, up))
            for i in edges[group]:
                other = pairs[i].made[0] + pairs[i].read[0] - group
                if other not in seen:
                    seen.add(other)
                    stack.append((other, i))
    told: dict[int, Indices] = {}  # pair -> the child's choice per parent's layout
    for group, up in reversed(order):
        if up < 0:
            continue
        pair, is_reader = pairs[up], pairs[up].read[0] == group
        mine = pair.read if is_reader else pair.made
        parents = pair.made if is_reader else pair.read
        prices = pair.prices if is_reader else pair.prices.T
        column = _column(table, mine, made=not is_reader)
        through = weights[up] * prices[:, column] + costs[group][None, :]
        told[up] = through.argmin(axis=1).astype(np.int32)
        theirs = _column(table, parents, made=is_reader)
        costs[parents[0]] = costs[parents[0]] + through.min(axis=1)[theirs]
    choices = [0] * len(edges)
    for group, up in order:
        if up < 0:
            choices[group] = int(costs[group].argmin())
            continue
        pair, is_reader = pairs[up], pairs[up].read[0] == group
        parents = pair.made if is_reader else pair.read
        theirs = _column(table, parents, made=is_reader)
        choices[group] = int(told[up][theirs[choices[parents[0]]]])
    return choices
