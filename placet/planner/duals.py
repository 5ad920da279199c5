"""Prices of rows, made to prove a bound of all plans, and what they say of choices.

Let y be any prices of a relaxation's rows. Those at a tree's ends say what it is worth
that a tensor is in a layout there. Replace those where it is made, by V of all readers:

    V_c(l) = min over layouts r that c may read  price(l -> r) + y_c(r)
    V_S(l) = min( min over parts S = T + U  V_T(l) + V_U(l),
                  min over layouts m  price(l -> m) + V_S(m) )           -> _settled

over *all* layouts of the domain, so no column of any tree has a negative reduced cost,
not even those that the model left out (Dreyfus and Wagner's recursion once more). What
is left is each node's own: the price of its row is its cheapest choice's. Then

    bound = sum over rows of price * side + sum of negative reduced costs
                                                                         -> certify

A plan that costs less than U uses no choice whose reduced cost, for one of the class's
members, is more than U - bound: the average of a plan in which one of |v| members takes
choice k has x[v, k] >= 1 / |v|                                          -> worthwhile

Source: A. M. Geoffrion, "Lagrangean relaxation for integer programming", Mathematical
Programming Study 2 (1974); differs in that trees are priced whole, by their recursion.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placet.planner.flows import Tree
from placet.planner.linear import Model, Numbers
from placet.planner.problem import Floats


class Certificate(NamedTuple):
    """What prices prove.

    Args:
        bound: no plan costs less.
        reduced: per node class, what each kept choice costs above the cheapest.
    """

    bound: float
    reduced: tuple[Floats, ...]


def certify(
    model: Model,
    trees: Sequence[Tree],
    columns: Sequence[Numbers],
    convex: Numbers,
    prices: Floats | None,
) -> Certificate:
    """A bound of all plans from any prices of a relaxation's rows.

    Args:
        trees: of the model; others' columns are as they are.
        columns: of each node class; convex: the row in which they sum to 1.
        prices: (rows,) in the unit of the costs; None for zeros.
    """
    fair = model.fair(np.zeros(len(model.lower)) if prices is None else prices.copy())
    free = np.ones(len(model.costs), dtype=bool)
    for tree in trees:
        _settle(tree, fair)
        free[slice(*tree.columns)] = False
    fair[convex] = 0.0
    reduced = model.costs - model.matrix.T @ fair
    slack = []
    for row, mine in zip(convex, columns, strict=True):
        least = float(reduced[mine].min())
        fair[row] = least
        slack.append(reduced[mine] - least)
        free[mine] = False
    side = np.where(fair > 0, model.lower, model.upper)
    gained = float(fair[fair != 0] @ side[fair != 0])
    bound = gained + float(np.minimum(reduced[free], 0.0).sum())
    return Certificate(bound, tuple(slack))


def worthwhile(
    found: Certificate, sizes: Sequence[int], cost: float
) -> list[npt.NDArray[np.bool_]]:
    """Per node class, which choices a plan that costs less than `cost` may use.

    Args:
        sizes: how many members each class has.
    """
    room = cost - found.bound
    room += 1e-9 * abs(cost)
    return [
        reduced <= room * size
        for reduced, size in zip(found.reduced, sizes, strict=True)
    ]


def _settle(tree: Tree, prices: Floats) -> None:
    """Replaces the prices where a tree starts; see the module's recursion."""
    known = np.isfinite(tree.domain.prices)
    steps = np.where(known, tree.domain.prices, 0.0) * tree.weight
    steps[~known] = np.inf
    worth: dict[int, Floats] = {}
    for c, (layouts, rows) in enumerate(tree.reads):
        worth[1 << c] = (steps[:, layouts] + prices[rows]).min(axis=1)
    full = (1 << len(tree.reads)) - 1
    for s in range(1, full + 1):
        if s in worth:
            continue
        halves = [h for h in range((s - 1) & s, 0, -1) if h & s == h and h >= s ^ h]
        parted = np.min([worth[h] + worth[s ^ h] for h in halves], axis=0)
        worth[s] = (steps + parted).min(axis=1)
    layouts, rows = tree.made
    there = worth[full][layouts]
    # From where no reader is reached nothing may start: worth more than all else.
    most = 1e6 * (1.0 + float(np.abs(there[np.isfinite(there)]).max(initial=0.0)))
    prices[rows] = np.where(np.isfinite(there), there, most)
