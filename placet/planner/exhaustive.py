"""The cheapest assignment by trying all: what other solvers are tested against.

Nodes are decided one after another; a branch ends when what is paid for certain (nodes
decided, tensors whose ends are all decided) is no less than the best found.
"""

import math
import time
from collections.abc import Iterator, Sequence
from itertools import combinations

from placet.planner.problem import (
    Assignment,
    Problem,
    Solution,
    evaluate,
    kept_bytes,
    tensor_cost,
)


def solve_exhaustively(problem: Problem) -> Solution:
    """The cheapest assignment within the memory; bound and cost are equal."""
    started = time.monotonic()
    limit = math.inf if problem.memory_bytes is None else problem.memory_bytes
    search = _Search(problem, limit)
    search.decide(0, 0.0)
    seconds = time.monotonic() - started
    least = search.least if search.best is None else None
    cost = search.cost
    return Solution(search.best, cost, cost, True, "exhaustive", seconds, least)


class _Search:
    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem = problem
        self.limit = limit
        self.best: Assignment | None = None
        self.cost = math.inf
        self.least = math.inf
        self.choices = [0] * len(problem.nodes)
        self.decided: list[list[int]] = [[] for _ in problem.nodes]
        for t, tensor in enumerate(problem.tensors):
            ends = [tensor.producer[0], *(n for n, _ in tensor.consumers)]
            self.decided[max(ends)].append(t)

    def decide(self, n: int, paid: float) -> None:
        """Tries all choices of node n and those after it."""
        if n == len(self.problem.nodes):
            self._compare(tuple(self.choices))
            return
        for choice, own in enumerate(self.problem.nodes[n].costs):
            self.choices[n] = choice
            partial = Assignment(tuple(self.choices))
            now = paid + float(own)
            now += sum(tensor_cost(self.problem, t, partial) for t in self.decided[n])
            if now < self.cost:
                self.decide(n + 1, now)

    def _compare(self, choices: tuple[int, ...]) -> None:
        for assignment in _keepings(self.problem, choices):
            found = evaluate(self.problem, assignment)
            self.least = min(self.least, found.memory_bytes)
            if found.memory_bytes <= self.limit and found.total < self.cost:
                self.best, self.cost = assignment, found.total


def _keepings(problem: Problem, choices: Sequence[int]) -> Iterator[Assignment]:
    """The ways to keep or gather again, of those that save memory."""
    plain = Assignment(tuple(choices))
    yield plain
    if problem.memory_bytes is None:
        return
    every = Assignment(plain.choices, frozenset(range(len(problem.tensors))))
    saving = [
        t
        for t in range(len(problem.tensors))
        if kept_bytes(problem, t, every) < kept_bytes(problem, t, plain)
    ]
    for count in range(1, len(saving) + 1):
        for some in combinations(saving, count):
            yield Assignment(plain.choices, frozenset(some))
