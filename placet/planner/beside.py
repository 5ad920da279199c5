"""The best plan when boxings travel beside computing.

The solver adds up what a step computes and moves. A rank, though, computes while its
gradients travel home in buckets, so plans that move gradients are faster than that sum
and those that move activations, for which everyone waits, are not. So other plans are
looked at, for which gradients going home and parameters read cost less:

    problem(share)   their boxings at a share of the price         -> discounted
    seconds          each plan's program on two lanes              -> timeline_of
    the plan         of least such seconds, or of the fewest boxings where these are
                     alike                                         -> best_beside

Costs and bounds stay those without overlap: the chosen plan may cost more than the one
of least cost, and its gap says so.

Source: overlap as in PyTorch's data parallelism (arXiv:2006.15704), 4.2.3; differs in
that whole plans are compared by it.
"""

import time
from dataclasses import dataclass, replace

from placet.boxing.routes import Domain
from placet.cost.objective import Seconds
from placet.cost.timeline import timeline_of
from placet.placement.mesh import Mesh
from placet.planner.decide import decide
from placet.planner.problem import Assignment, Problem, Solution, evaluate
from placet.planner.search import solve
from placet.program.graph import Graph
from placet.program.refine import refine

SHARES = (0.5, 0.1)
"""Of the price of boxings that may be hidden."""

GAP = 0.01
"""At which these searches may end: they give candidates, no proof."""

ALIKE = 1.05
"""Predictions are no better than that: of plans so near the best, the one of the fewest
boxings is taken, as ranks that wait for each other lose more than links do."""

LEAST_SECONDS = 1.0
"""With less time left, no other plan is looked for."""


def best_beside(
    graph: Graph,
    mesh: Mesh,
    problem: Problem,
    solution: Solution,
    prices: Seconds,
    *,
    ends: float,
) -> Solution:
    """The solution whose step is predicted to be shortest, among it and others.

    Args:
        graph, mesh, problem: what was solved.
        solution: of least cost, with an assignment.
        prices: of links and machine.
        ends: when to stop searching (`time.monotonic`).
    """
    assert solution.assignment is not None
    first = _step(graph, mesh, problem, solution.assignment, prices)
    steps = [first]
    for number, share in enumerate(SHARES):
        left = (ends - time.monotonic()) / (len(SHARES) - number)
        if left < LEAST_SECONDS:
            break
        found = solve(discounted(problem, share), time_limit_seconds=left, gap=GAP)
        if found.assignment is not None:
            steps.append(_step(graph, mesh, problem, found.assignment, prices))
    least = min(step.seconds for step in steps)
    alike = [step for step in steps if step.seconds <= least * ALIKE]
    best = min(alike, key=lambda step: step.num_boxings)
    if best is first:
        return solution
    note = (
        f"chosen for what overlaps: {best.seconds:.3g} s a step and {best.num_boxings} "
        f"boxings; the plan of least cost without overlap would take "
        f"{first.seconds:.3g} s and {first.num_boxings}"
    )
    cost = evaluate(problem, best.assignment).total
    notes = (*solution.notes, note)
    return replace(solution, assignment=best.assignment, cost=cost, notes=notes)


def discounted(problem: Problem, share: float) -> Problem:
    """The problem with a share of the price for what may travel beside computing.

    That is gradients and other new values on their way home, and what states are read
    as. Layouts keep their numbers, so an assignment means the same in both problems.
    """
    states = [node for node in problem.nodes if node.is_state]
    hidden = {tensor for node in states for tensor in node.inputs}
    hidden |= {t for node in states for t in node.outputs if t is not None}
    cheap: dict[int, Domain] = {}
    tensors = []
    for index, tensor in enumerate(problem.tensors):
        if index in hidden:
            domain = tensor.domain
            if id(domain) not in cheap:
                cheap[id(domain)] = replace(
                    domain, steps=domain.steps * share, prices=domain.prices * share
                )
            tensor = replace(tensor, domain=cheap[id(domain)])
        tensors.append(tensor)
    return replace(problem, tensors=tuple(tensors))


@dataclass(frozen=True)
class _Step:
    """A plan's step as predicted."""

    assignment: Assignment
    seconds: float
    num_boxings: int


def _step(
    graph: Graph, mesh: Mesh, problem: Problem, assignment: Assignment, prices: Seconds
) -> _Step:
    division = decide(problem, mesh, assignment)
    cluster = prices.links.cluster
    refined = refine(graph, division, name="plan", cluster=cluster)
    seconds = timeline_of(graph, division, refined, prices).seconds
    return _Step(assignment, seconds, len(refined.program.boxings()))
