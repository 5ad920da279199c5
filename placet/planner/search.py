"""The search for the cheapest plan, and the proof of how good it is.

    1  leave out choices that others replace                       -> reduce.py
    2  a first plan: descend over classes, then over single nodes  -> descent.py
       and move whole trees of classes, or of nodes, at once       -> forests.py
    3  solve the linear relaxation, layers tied, without moves
       that cost more than that plan                               -> relax.py
       its prices prove a bound of all plans                       -> duals.py
    4  round it and descend; single nodes out of classes
    5  if a gap is left: drop choices that no better plan uses     -> duals.py
       and do 3 and 4 again without ties
    6  if a gap is left: whole numbers, with ties, then without

Whole numbers with ties restrict the problem, so that run gives plans and no bound. The
run without ties gives both. Where no gap is asked for, problems that are not small are
done at GOOD_GAP: what the last thousandths cost in time is not worth it.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placet.planner.classes import Ties, ties_of, untied
from placet.planner.descent import Descended, descend_within
from placet.planner.duals import Certificate, worthwhile
from placet.planner.forests import improve
from placet.planner.linear import Numbers
from placet.planner.problem import Assignment, Floats, Problem, Solution, evaluate
from placet.planner.reduce import needed_choices
from placet.planner.relax import Relaxation, Relaxed, relax
from placet.planner.table import Table

SMALL = 8_000
"""Columns, without ties, up to which the best plan is searched exactly."""
LARGEST = 400_000
"""Columns above which whole numbers are not tried."""
PATIENCE = 12
"""Moves along forests that may fail in a row."""
LP_SHARE = 0.8
"""Of the time, so that some is left to descend in."""
EXACT_GAP = 1e-9
GOOD_GAP = 5e-3
TOLERANCE = 1e-9
"""How much of the memory limit rounding may exceed."""


def solve(
    problem: Problem,
    *,
    time_limit_seconds: float = 60.0,
    cutoff: float | None = None,
    gap: float | None = None,
) -> Solution:
    """The cheapest plan found, and a bound of all plans.

    Args:
        problem: nodes and tensors of one `kind` decide alike at first.
        time_limit_seconds: then the best so far is returned, `is_complete` false.
        cutoff: no plan is wanted that costs as much; the search ends when the bound
            reaches it.
        gap: the search ends when it is reached, (cost - bound) / bound; 0: the best.

    Raises:
        ValueError: nodes of one kind differ.
    """
    started = time.monotonic()
    run = _Run(problem, started + time_limit_seconds, cutoff, gap)
    solution = run.search()
    return replace(solution, seconds=time.monotonic() - started)


@dataclass
class _Best:
    assignment: Assignment | None = None
    cost: float = math.inf


class _Run:
    """One search: what is known so far."""

    def __init__(
        self,
        problem: Problem,
        deadline: float,
        cutoff: float | None,
        gap: float | None,
    ) -> None:
        self.problem = problem
        self.deadline = deadline
        self.cutoff = math.inf if cutoff is None else cutoff
        self.ties = ties_of(problem)
        self.best = _Best()
        self.bound = sum(float(n.costs.min()) for n in problem.nodes)
        self.notes: list[str] = []
        self.is_complete = True
        self.is_small = True
        self.gap = gap

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def search(self) -> Solution:
        choices = needed_choices(self.problem, self.ties)
        relaxation = relax(self.problem, self.ties, choices)
        size = len(relaxation.model.costs)
        self.is_small = size * len(self.problem.nodes) <= SMALL * len(self.ties.nodes)
        if not self.is_small:
            self._descend(self.ties, [0] * len(self.ties.nodes))
            relaxation = relax(self.problem, self.ties, choices, most=self.best.cost)
        found = self._relaxed(relaxation)
        if found.status == "infeasible":
            return self._nothing_fits()
        if self.bound >= self.cutoff:
            self.notes.append(f"cut off: no plan costs less than {self.cutoff:.6g}")
            return self._solution()
        if found.values is None:
            self.is_complete = False
            self.notes.append("the relaxation ran out of time")
            if self.is_small:
                self._descend(self.ties, [0] * len(self.ties.nodes))
            return self._solution()
        self._round(relaxation, found.values, self.ties)
        if not (self._is_good() or self.ties.is_trivial):
            self._single_out(relaxation, found.values)
        kept = self._worthwhile(choices, self.ties, found.proof)
        if not (self._is_good() or self.is_small or self.ties.is_trivial):
            kept = self._untie(kept)
        for ties in self._orders():
            if self._is_good():
                break
            self._whole(ties, [kept[group[0]] for group in ties.nodes])
        if self.best.assignment is None and self.is_complete:
            return self._nothing_fits()
        if not self._is_good():
            self.is_complete = False
        return self._solution()

    def _orders(self) -> list[Ties]:
        free = untied(self.problem)
        return [free] if self.ties.is_trivial else [self.ties, free]

    @property
    def wanted_gap(self) -> float:
        """The gap at which the search is done."""
        if self.gap is not None:
            return max(self.gap, EXACT_GAP)
        return EXACT_GAP if self.is_small else GOOD_GAP

    def _is_good(self) -> bool:
        wanted = max(self.wanted_gap, 10 * EXACT_GAP)
        return self.best.cost - self.bound <= wanted * abs(self.bound) + 1e-12

    def _relaxed(self, relaxation: Relaxation) -> Relaxed:
        size, seconds = len(relaxation.model.costs), self.left * LP_SHARE
        method = "highs-ds" if size <= SMALL or seconds < 1 else "highs-ipm"
        found = relaxation.relaxed(seconds, method)
        # Plans that cost as much as the best were perhaps left out.
        self.bound = max(self.bound, min(found.proof.bound, self.best.cost))
        return found

    def _worthwhile(
        self, choices: Sequence[Numbers], ties: Ties, proof: Certificate
    ) -> list[Numbers]:
        """Per node, the choices that a plan better than the best may use."""
        if not math.isfinite(self.best.cost):
            return [choices[v] for v in ties.node_class]
        used = worthwhile(proof, [len(g) for g in ties.nodes], self.best.cost)
        return [choices[v][used[v]] for v in ties.node_class]

    def _single_out(self, relaxation: Relaxation, values: Floats) -> None:
        """Looks for whole numbers among what the members of classes do on average."""
        used = relaxation.used(values)
        kept = [used[v] for v in self.ties.node_class]
        if self.best.assignment is not None:
            pairs = zip(kept, self.best.assignment.choices, strict=True)
            kept = [np.union1d(choices, [mine]) for choices, mine in pairs]
        self._whole(untied(self.problem), kept, proves=False)

    def _untie(self, kept: list[Numbers]) -> list[Numbers]:
        """A bound and plans in which every node decides alone; what is then left."""
        free = untied(self.problem)
        relaxation = relax(self.problem, free, kept, most=self.best.cost)
        if len(relaxation.model.costs) > LARGEST:
            return kept
        found = self._relaxed(relaxation)
        if found.values is None or self._is_good():
            return kept
        self._round(relaxation, found.values, free)
        return self._worthwhile(kept, free, found.proof)

    def _round(self, relaxation: Relaxation, values: Floats, ties: Ties) -> None:
        self._descend(ties, relaxation.taken(values))
        if self.is_small and not self._is_good():
            self._descend(ties, [0] * len(ties.nodes))

    def _descend(self, ties: Ties, start: list[int]) -> None:
        """Descends over classes, then over single nodes."""
        table = Table(self.problem, ties.nodes)
        end = descend_within(table, start, deadline=self.deadline)
        if end is None:
            return
        self._offer(table.assignment(end.choices, end.rate))
        if not self._is_good():
            end = self._moved(table, end)
        if not ties.is_trivial:
            single = [end.choices[v] for v in ties.node_class]
            self._polish(single, end)

    def _moved(self, table: Table, end: Descended) -> Descended:
        """Moves trees of classes at once; keeps what fits the memory."""
        exact = self.wanted_gap == EXACT_GAP
        wanted = self.bound + self.wanted_gap * abs(self.bound)
        seconds = (1 - LP_SHARE) * self.left
        found = improve(
            table,
            end,
            patience=PATIENCE,
            deadline=time.monotonic() + seconds,
            wanted=-math.inf if exact else wanted,
        )
        fits = self._offer(table.assignment(found.choices, found.rate))
        return found if fits else end

    def _polish(self, single: list[int], end: Descended) -> None:
        """Descends over single nodes, and moves trees of them."""
        table = Table(self.problem, untied(self.problem).nodes)
        found = descend_within(table, single, rate=end.rate, deadline=self.deadline)
        if found is None:
            return
        self._offer(table.assignment(found.choices, found.rate))
        if not self._is_good():
            self._moved(table, found)

    def _whole(
        self, ties: Ties, choices: Sequence[Numbers], *, proves: bool = True
    ) -> None:
        """Searches whole numbers; without ties the bound is one of all plans.

        Args:
            proves: whether no better plan has other choices.
        """
        if self.left <= 0:
            self.is_complete = False
            return
        free = ties.is_trivial and proves
        most = None if free else self.best.cost
        relaxation = relax(self.problem, ties, choices, alike=True, most=most)
        if len(relaxation.model.costs) > LARGEST:
            return
        seconds = self.left if proves else self.left * (1 - LP_SHARE)
        found = relaxation.model.solved(seconds, self.wanted_gap)
        if found.status == "infeasible":  # nothing is better than the best
            self.bound = max(self.bound, self.best.cost) if free else self.bound
            return
        if free and np.isfinite(found.bound):
            self.bound = max(self.bound, min(found.bound, self.best.cost))
        if found.status == "time" and proves:
            self.is_complete = False
        if found.values is not None:
            plan = self._read(relaxation, found.values, ties)
            self._offer(plan)
            if not self._is_good():
                self._descend(ties, [plan.choices[group[0]] for group in ties.nodes])

    def _read(self, relaxation: Relaxation, values: Floats, ties: Ties) -> Assignment:
        """The assignment that a solution in whole numbers stands for."""
        taken = relaxation.taken(values)
        choices = [taken[v] for v in ties.node_class]
        again: set[int] = set()
        for column, group in zip(relaxation.regathered, ties.tensors, strict=True):
            if column >= 0 and values[column] > 0.5:
                again.update(group)
        return Assignment(tuple(choices), frozenset(again))

    def _offer(self, assignment: Assignment) -> bool:
        """Keeps a plan if it is the best so far; returns whether it fits."""
        found = evaluate(self.problem, assignment)
        limit = self.problem.memory_bytes
        fits = limit is None or found.memory_bytes <= limit * (1 + TOLERANCE)
        if fits and found.total < self.best.cost:
            self.best = _Best(assignment, found.total)
        return fits

    def _nothing_fits(self) -> Solution:
        """Says how little memory any plan needs."""
        least: float | None = None
        if self.problem.memory_bytes is not None:
            least = self._least_memory()
        else:
            self.notes.append("no choice of layouts joins all nodes")
        return Solution(
            None, math.inf, math.inf, True, "search", 0.0, least, tuple(self.notes)
        )

    def _least_memory(self) -> float:
        """The memory of the leanest plan found, or a bound of it if time is short."""
        relaxation = relax(self.problem, self.ties, least_memory=True)
        exact = len(relaxation.model.costs) <= SMALL
        seconds = max(self.left, 10.0)
        if exact:
            whole = relaxation.model.solved(seconds, EXACT_GAP)
            return whole.bound if whole.values is None else whole.cost
        found = relaxation.relaxed(seconds)
        return found.proof.bound if found.values is None else found.cost

    def _solution(self) -> Solution:
        cost = self.best.cost
        assert self.bound <= cost * (1 + 1e-7) + 1e-7, "a plan below the bound"
        bound = min(self.bound, cost)
        return Solution(
            self.best.assignment,
            self.best.cost,
            bound,
            self.is_complete,
            "search",
            0.0,
            None,
            tuple(self.notes),
        )
