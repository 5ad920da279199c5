"""Coordinate descent: one group of nodes after another takes its best choice.

    sweep     each group in turn: the choice of least cost, all others fixed
    descend   sweeps until nothing changes                          -> descend
    restarts  from given and from random starts, the best is kept   -> solve_by_descent

Layers that are alike are one group, so a sweep of a deep model costs no more than one
of a shallow model. A memory limit has a price per byte, raised until the plan fits.

Source: J. Chen et al., "AutoDDL: Automatic Distributed Deep Learning with Near-Optimal
Bandwidth Cost", TPDS 2024; differs in that boxings are trees which readers share. It
proves nothing: its bound is that of the cheapest choice of every node alone.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placet.planner.classes import ties_of
from placet.planner.problem import Assignment, Problem, Solution, evaluate
from placet.planner.table import Table

MAX_SWEEPS = 50
MAX_RATES = 40


@dataclass(frozen=True)
class Descended:
    """Where a descent ended.

    Args:
        choices: per group.
        rate: what a byte of memory was worth.
        cost, memory_bytes: of it.
    """

    choices: tuple[int, ...]
    rate: float
    cost: float
    memory_bytes: float


def descend(
    table: Table,
    start: Sequence[int],
    *,
    rate: float = 0.0,
    deadline: float = math.inf,
) -> Descended:
    """Sweeps until no group's choice alone lowers cost + rate * memory.

    Args:
        start: a choice for each group.
        rate: the price of a byte of memory.
        deadline: of `time.monotonic`; then it ends where it is.
    """
    choices = list(start)
    waiting = dict.fromkeys(range(len(choices)))
    budget = MAX_SWEEPS * len(choices)
    while waiting and budget and time.monotonic() < deadline:
        group = next(iter(waiting))
        del waiting[group]
        budget -= 1
        if len(table.problem.nodes[table.groups[group][0]].costs) == 1:
            continue
        cost, held = table.options(choices, group, rate)
        value = cost + rate * held
        best, now = int(value.argmin()), float(value[choices[group]])
        least = 1e-12 * abs(now) if np.isfinite(now) else 0.0
        if value[best] < now - least:
            choices[group] = best
            for p in table.touching[group]:
                pattern = table.patterns[p]
                ends = (pattern.made, *pattern.read)
                waiting.update(dict.fromkeys(g for g, _ in ends if g != group))
    return Descended(tuple(choices), rate, *table.value(choices, rate))


def descend_within(
    table: Table,
    start: Sequence[int],
    *,
    rate: float = 0.0,
    deadline: float = math.inf,
) -> Descended | None:
    """The same within the memory limit, if a price of memory is found that keeps it."""
    limit = table.limit
    found = descend(table, start, rate=rate, deadline=deadline)
    if limit is None or found.memory_bytes <= limit:
        return found
    if not np.isfinite(found.cost):
        return None
    low, high = rate, rate
    best: Descended | None = None
    tries = 0
    while tries < MAX_RATES and time.monotonic() < deadline:
        tries += 1
        if best is None:
            low, high = high, max(high * 4, found.cost / max(limit, 1.0) * 1e-3, 1e-12)
            middle = high
        else:
            middle = math.sqrt(low * high) if low > 0 else high / 16
        found = descend(table, found.choices, rate=middle, deadline=deadline)
        if found.memory_bytes > limit:
            low = middle
            continue
        high = middle
        if best is None or found.cost < best.cost:
            best = found
        if low > 0 and high / low < 1.02:
            break
    return best


def solve_by_descent(
    problem: Problem,
    *,
    time_limit_seconds: float = 60.0,
    starts: Sequence[Assignment] = (),
    restarts: int = 4,
    seed: int = 0,
) -> Solution:
    """Descends from several starts; the best plan is kept.

    Args:
        starts: plans to begin with; the first choice of every node is always one.
        restarts: how many random starts follow.
        seed: of these.
    """
    started = time.monotonic()
    deadline = started + time_limit_seconds
    ties = ties_of(problem)
    table = Table(problem, ties.nodes)
    sizes = [len(problem.nodes[g[0]].costs) for g in ties.nodes]
    random = np.random.default_rng(seed)
    begins = [[plan.choices[g[0]] for g in ties.nodes] for plan in starts]
    begins.append([0] * len(sizes))
    begins.extend([int(random.integers(k)) for k in sizes] for _ in range(restarts))
    best: Assignment | None = None
    cost = math.inf
    for plan in starts:
        found = evaluate(problem, plan)
        fits = table.limit is None or found.memory_bytes <= table.limit
        if fits and found.total < cost:
            best, cost = plan, found.total
    for begin in begins:
        end = descend_within(table, begin, deadline=deadline)
        if end is not None and end.cost < cost:
            best, cost = table.assignment(end.choices, end.rate), end.cost
    now = time.monotonic()
    floor = sum(float(node.costs.min()) for node in problem.nodes)
    bound = min(floor, cost)
    return Solution(best, cost, bound, now < deadline, "descent", now - started)
