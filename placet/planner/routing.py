"""The steps of a domain that a relaxation needs, none that it can do without.

A cheapest tree is made of cheapest paths between its ends and its branches. One
cheapest path for each pair of ends is enough, so flows from some layouts to others
need the steps of one such path only                          -> path_steps
For trees whose branches are not told apart all steps are needed but those that two
cheaper ones, each of a positive price, replace               -> needed_steps
(by induction over prices each removed step is still a path).
Trees seldom branch where none of their ends is, and good plans take no path that is
dearer than a whole plan. A model without these is smaller    -> near
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from placet.boxing.routes import Domain

Positions = npt.NDArray[np.intp]
Steps = tuple[Positions, Positions]
"""(steps,) from, and to."""


def path_steps(domain: Domain, sources: Positions, sinks: Positions) -> Steps:
    """The steps of one cheapest path from each source to each sink.

    Args:
        sources, sinks: layouts, without repetition.
    """
    following = _next_layouts(domain)
    size = len(domain.layouts)
    here = np.zeros((size, size), dtype=bool)
    here[np.ix_(sources, sinks)] = True
    here &= following >= 0
    used = np.zeros((size, size), dtype=bool)
    done = np.zeros((size, size), dtype=bool)
    while here.any():
        at, goal = np.nonzero(here)
        there = following[at, goal]
        used[at, there] = True
        done |= here
        here = np.zeros((size, size), dtype=bool)
        here[there, goal] = following[there, goal] >= 0
        here &= ~done
    src, dst = np.nonzero(used)
    return src, dst


@lru_cache(maxsize=4096)
def needed_steps(domain: Domain) -> Steps:
    """All steps but those that two cheaper ones replace."""
    steps = domain.steps.copy()
    np.fill_diagonal(steps, np.inf)
    positive = np.where(domain.prices > 0, domain.prices, np.inf)
    best = np.full_like(steps, np.inf)
    for k in range(len(steps)):
        np.minimum(best, positive[:, k, None] + positive[None, k], out=best)
    src, dst = np.nonzero(np.isfinite(steps) & (steps < best))
    return src, dst


@lru_cache(maxsize=4096)
def near(domain: Domain, kept: tuple[int, ...], most: float = np.inf) -> Domain:
    """A domain of some of the layouts, whose steps are paths that pass no other.

    Args:
        most: dearer paths are left out.
    """
    prices = domain.prices[np.ix_(kept, kept)]
    prices = np.where(prices <= most, prices, np.inf)
    layouts = tuple(domain.layouts[i] for i in kept)
    paths = Domain(layouts, prices, prices, domain.local_bytes[list(kept)])
    src, dst = needed_steps(paths)
    steps = np.full_like(paths.steps, np.inf)
    steps[src, dst] = paths.steps[src, dst]
    np.fill_diagonal(steps, 0.0)
    return replace(paths, steps=steps)


@lru_cache(maxsize=4096)
def _next_layouts(domain: Domain) -> Positions:
    """(n, n): where a cheapest path with the fewest steps goes first; -1: nowhere."""
    size = len(domain.layouts)
    prices, steps = domain.prices, domain.steps.copy()
    np.fill_diagonal(steps, np.inf)
    largest = prices[np.isfinite(prices)].max(initial=0.0)
    following = np.full((size, size), -1, dtype=np.intp)
    reached = np.eye(size, dtype=bool)
    src, dst = np.nonzero(np.isfinite(steps))
    tight = steps[src, dst, None] + prices[dst] <= prices[src] + 1e-13 * largest
    while True:
        new = np.zeros((size, size), dtype=bool)
        usable = tight & reached[dst] & ~reached[src]
        edge, goal = np.nonzero(usable)
        following[src[edge], goal] = dst[edge]
        new[src[edge], goal] = True
        if not new.any():
            return following
        reached |= new
