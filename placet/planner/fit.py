"""Plans that fit the memory for sure: the solver's row is held against the true peak.

The solver counts what is held when the forward ends: states, and what it keeps for the
backward, a row of numbers; the peak also has gradients, payloads and whatever an
operator needs for a while. A plan whose peak is above the limit is searched again with
less in the row:

    row limit = limit - (peak - row), until the peak is below the limit      -> fitted
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

ATTEMPTS = 4
ROUNDING = 1e-3
"""How far above the least row a plan is looked for."""
SMALLER = 0.95
"""How much less memory the leanest plan is tried with, again and again."""
LEANEST_SECONDS = 20.0


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
        The first plan that fits; or else the leanest that was found. Without a limit
        the peak is not counted, as that takes as long as the search: it is the row.
    """
    limit = problem.memory_bytes
    if limit is None:
        assert solution.assignment is not None
        row = evaluate(problem, solution.assignment).memory_bytes
        return Fitted(decide(problem, mesh, solution.assignment), solution, row, row)
    best = _measured(graph, mesh, problem, solution, storage, cluster)
    row_limit = limit
    for _ in range(ATTEMPTS):
        if best.peak_bytes <= limit or time.monotonic() >= ends:
            break
        row_limit = min(row_limit, best.row_bytes) - (best.peak_bytes - limit)
        tighter = replace(problem, memory_bytes=row_limit)
        found = solve(tighter, time_limit_seconds=max(1.0, ends - time.monotonic()))
        if found.assignment is None:
            break
        again = _measured(graph, mesh, tighter, found, storage, cluster)
        if again.peak_bytes < best.peak_bytes:
            best = again
    return best


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
