"""The layouts a tensor can be in, and the cheapest boxings between them.

    layouts     what a tensor's producer and consumers can want     -> make_domain
    steps       changes that one rule of the table makes            -> Domain.steps
    prices      cheapest path between any two                       -> Domain.prices
    a tree      one layout made, several read: boxings share steps  -> Domain.tree

Only changes along axes are steps here, no box intersections (except for halos), so
that a domain costs the same for 4 ranks and 4096.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placet.boxing.path import Step
from placet.placement.layout import Layout

StepPrice = Callable[[Step], float]
"""What a step costs, >= 0."""


@dataclass(frozen=True, eq=False)
class Domain:
    """A tensor's layouts and the prices between them.

    Args:
        layouts: all on one mesh.
        steps: (n, n) the price of changing in one step; inf where no rule does.
        local_bytes: (n,) on the fullest rank.
    """

    layouts: tuple[Layout, ...]
    steps: npt.NDArray[np.float64]
    local_bytes: npt.NDArray[np.float64]

    def tree_price(self, src: int, wanted: tuple[int, ...]) -> float:
        """The price of the cheapest tree of steps from a layout to several."""
        raise NotImplementedError

    def tree(self, src: int, wanted: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The steps of that tree, each before those that go on from it."""
        raise NotImplementedError
