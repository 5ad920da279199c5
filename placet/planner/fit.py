"""Plans that fit the memory for sure: the solver's row is held against the true peak.

The solver counts what is held when the forward ends: states, and what it keeps for the
backward, a row of numbers; the peak also has gradients, payloads and whatever an
operator needs for a while. A plan whose peak is above the limit is searched again with
less in the row:

    row limit = limit - (peak - row), or halfway between one that was too much and one
                that was too little, until the peak is near the limit        -> fitted
    row limit = the least row, then less than the last peak, as long as that gets
                smaller                                                      -> leanest

Bounds stay those of the first search: the row alone is less than any plan needs.
"""

import time
from dataclasses import dataclass, replace

from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.build import with_memory
from placet.planner.decide import decide
from placet.planner.problem import Problem, Solution, evaluate
from placet.planner.search import solve
from placet.planner.storage import Storage
from placet.program.division import Division
from placet.program.fullest import fullest_peak
from placet.program.graph import Graph
from placet.program.refine import refine

ATTEMPTS = 6
NEAR = 0.01
"""Of the limit: row limits that are no farther apart need not be told apart."""
ROUNDING = 1e-3
"""How far above the least row a plan is looked for."""
SMALLER = 0.95
"""How much less memory the leanest plan is tried with, again and again."""
LEANEST_SECONDS = 20.0

TIGHT = (
    "searched with less than the memory, as a step's peak is more than what is held "
    "when the forward ends; the bound knows only that: the gap may be less than it says"
)


@dataclass(frozen=True)
class Fitted:
    """A plan with the peak of its fullest rank.

    Args:
        row_bytes: what the solver counted of it.
        peak_bytes: what it needs.
    """

    division: Division
    solution: Solution
    row_bytes: float
    peak_bytes: float

    def rank_within(self, limit: float) -> tuple[float, float]:
        """Less is better: plans that fit by cost, others by what is too much."""
        return max(0.0, self.peak_bytes - limit), self.solution.cost


def fitted(
    graph: Graph,
    mesh: Mesh,
    problem: Problem,
    solution: Solution,
    storage: Storage,
    *,
    ends: float,
    cluster: Cluster | None = None,
) -> Fitted:
    """A solution's plan, searched again with less memory while its peak is too high.

    Args:
        ends: when to stop searching (`time.monotonic`).
        cluster: the links by which moves choose their algorithm.

    Returns:
        The cheapest plan that fits; or else the leanest that was found. Without a limit
        the peak is not counted, as that takes as long as the search: it is the row.
    """
    limit = problem.memory_bytes
    if limit is None:
        assert solution.assignment is not None
        row = evaluate(problem, solution.assignment).memory_bytes
        return Fitted(decide(problem, mesh, solution.assignment), solution, row, row)
    best = last = _measured(graph, mesh, problem, solution, storage, cluster)
    if best.peak_bytes <= limit:
        return best
    low, high = 0.0, limit
    for left in range(ATTEMPTS, 0, -1):
        seconds = (ends - time.monotonic()) / left
        if high - low <= NEAR * limit or seconds <= 0:
            break
        aim = last.row_bytes + limit - last.peak_bytes
        if not low < aim < high:
            aim = (low + high) / 2
        tighter = replace(problem, memory_bytes=aim)
        found = solve(tighter, time_limit_seconds=max(1.0, seconds))
        if found.assignment is None:
            low = aim
            continue
        last = _measured(graph, mesh, tighter, found, storage, cluster)
        best = min(best, last, key=lambda plan: plan.rank_within(limit))
        if last.peak_bytes <= limit:
            low = aim
        else:
            high = aim
    solution = replace(best.solution, notes=(*best.solution.notes, TIGHT))
    return replace(best, solution=solution)


def leanest(
    graph: Graph,
    mesh: Mesh,
    problem: Problem,
    storage: Storage,
    *,
    cluster: Cluster | None = None,
) -> Fitted | None:
    """The plan on a mesh that needs the least memory, as far as one is found."""
    ends = time.monotonic() + LEANEST_SECONDS
    best: Fitted | None = None
    nothing = solve(with_memory(problem, 0.0), time_limit_seconds=LEANEST_SECONDS)
    limit = (nothing.least_memory_bytes or 0.0) * (1 + ROUNDING)
    while time.monotonic() < ends:
        limited = with_memory(problem, limit)
        found = solve(limited, time_limit_seconds=ends - time.monotonic())
        if found.assignment is None:
            break
        again = fitted(graph, mesh, limited, found, storage, ends=ends, cluster=cluster)
        if best is not None and again.peak_bytes >= best.peak_bytes:
            break
        best = again
        limit = max(limit, SMALLER * best.peak_bytes)
    return best


def _measured(
    graph: Graph,
    mesh: Mesh,
    problem: Problem,
    solution: Solution,
    storage: Storage,
    cluster: Cluster | None,
) -> Fitted:
    assert solution.assignment is not None
    division = decide(problem, mesh, solution.assignment)
    refined = refine(graph, division, name="plan", cluster=cluster)
    peak = fullest_peak(graph, division, refined, storage.kept)
    row = evaluate(problem, solution.assignment).memory_bytes
    return Fitted(division, solution, row, peak.num_bytes)
