"""Choices that nobody needs, left out before a problem is solved.

Choice b of a node does all that choice a does, and no worse, if

    cost(b) + sum over inputs of price(in_a -> in_b)
            + sum over outputs of price(out_b -> out_a)  <=  cost(a)

Proof: take any plan with a. Change a to b; bring each input from in_a to in_b at the
end of its tree, and start each output's tree with the path from out_b to out_a. All
readers get what they want, and the plan costs no more. So some cheapest plan does
without a; the same holds for flows, so the relaxation loses nothing either.
                                                               -> needed_choices
Memory is another matter (other layouts are kept): with a limit nothing is left out.
"""

import numpy as np

from placet.planner.classes import Ties, fingerprint
from placet.planner.linear import Numbers
from placet.planner.problem import Floats, Node, Problem


def needed_choices(problem: Problem, ties: Ties) -> tuple[Numbers, ...]:
    """Per node class, the choices worth keeping."""
    return tuple(_needed(problem, group) for group in ties.nodes)


def _needed(problem: Problem, group: tuple[int, ...]) -> Numbers:
    first = problem.nodes[group[0]]
    everything = np.arange(len(first.costs))
    if problem.memory_bytes is not None or len(everything) == 1:
        return everything
    different = {_domains(problem, problem.nodes[n]): n for n in group}
    tables = [_replaced(problem, problem.nodes[n]) for n in different.values()]
    better = np.max(tables, axis=0) <= 0
    np.fill_diagonal(better, False)
    kept = np.ones(len(everything), dtype=bool)
    for a in everything:
        # Who replaces it is still here, or was replaced by one who is.
        kept[a] = not (better[a] & kept).any()
    return np.flatnonzero(kept)


def _domains(problem: Problem, node: Node) -> tuple[int, ...]:
    tensors = (*node.inputs, *(t for t in node.outputs if t is not None))
    return tuple(fingerprint(problem.tensors[t].domain) for t in tensors)


def _replaced(problem: Problem, node: Node) -> Floats:
    """(a, b): what a plan gains in cost, at most, when b takes the place of a."""
    cost: Floats = node.costs[None, :] - node.costs[:, None]
    for slot, t in enumerate(node.inputs):
        column = node.input_layouts[:, slot]
        cost = cost + problem.tensors[t].domain.prices[np.ix_(column, column)]
    for slot, output in enumerate(node.outputs):
        if output is not None:
            column = node.output_layouts[:, slot]
            prices = problem.tensors[output].domain.prices
            cost = cost + prices[np.ix_(column, column)].T
    return cost
