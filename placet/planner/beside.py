"""The best plan when boxings travel beside computing.

The solver adds up what a step computes and moves. A rank, though, computes while its
gradients travel home in buckets, so plans that move gradients are faster than that sum
and those that move activations, for which everyone waits, are not. So other plans are
looked at, for which gradients going home and parameters read cost less:

    problem(share)   their boxings at a share of the price         -> discounted
    seconds          each plan's program on two lanes              -> timeline_of
    the plan         of least such seconds                         -> best_beside

Costs and bounds stay those without overlap: the chosen plan may cost more than the one
of least cost, and its gap says so.

Source: overlap as in PyTorch's data parallelism (arXiv:2006.15704), 4.2.3; differs in
that whole plans are compared by it.
"""

import time
from dataclasses import replace

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
    first = _seconds(graph, mesh, problem, solution.assignment, prices)
    best, least = solution.assignment, first
    for number, share in enumerate(SHARES):
        left = (ends - time.monotonic()) / (len(SHARES) - number)
        if left < LEAST_SECONDS:
            break
        found = solve(discounted(problem, share), time_limit_seconds=left, gap=GAP)
        if found.assignment is None:
            continue
        seconds = _seconds(graph, mesh, problem, found.assignment, prices)
        if seconds < least:
            best, least = found.assignment, seconds
    if best is solution.assignment:
        return solution
    note = (
        f"chosen for what overlaps: {least:.3g} s a step; the plan of least cost "
        f"without overlap would take {first:.3g} s"
    )
    cost = evaluate(problem, best).total
    return replace(solution, assignment=best, cost=cost, notes=(*solution.notes, note))


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


def _seconds(
    graph: Graph, mesh: Mesh, problem: Problem, assignment: Assignment, prices: Seconds
) -> float:
    division = decide(problem, mesh, assignment)
    cluster = prices.links.cluster
    refined = refine(graph, division, name="plan", cluster=cluster)
    return timeline_of(graph, division, refined, prices).seconds
