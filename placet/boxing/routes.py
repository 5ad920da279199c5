"""The layouts a tensor can be in, and the cheapest boxings between them.

    layouts     what a tensor's producer and consumers can want     -> make_domain
    steps       changes that one rule of the table makes            -> _frame
    prices      cheapest path between any two                       -> _closure
    a tree      one layout made, several read: boxings share steps  -> Domain.tree

Only changes along axes are steps here: of one axis, or of several alike as one. Box
intersections are not (for halos they are, on one axis), so that a domain costs the same
for 4 ranks and 4096.

Source of the tree: S. E. Dreyfus and R. A. Wagner, "The Steiner problem in graphs",
Networks 1 (1971); differs in directed steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import torch

from placet.boxing.counts import largest_part
from placet.boxing.path import Step, direct_step
from placet.boxing.rule import Change, Rule
from placet.placement.layout import Layout, Shape
from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, Partial, Placement, Split

StepPrice = Callable[[Step], float]
"""What a step costs, >= 0."""

Floats = npt.NDArray[np.float64]
MAX_EXACT = 5
"""Trees to more layouts than this are built from shortest paths, one by one."""


@dataclass(frozen=True, eq=False)
class Domain:
    """A tensor's layouts and the prices between them.

    Args:
        layouts: all on one mesh.
        steps: (n, n) the price of changing in one step; inf where no rule does.
        prices: (n, n) of the cheapest path.
        local_bytes: (n,) on the fullest rank.
    """

    layouts: tuple[Layout, ...]
    steps: Floats
    prices: Floats
    local_bytes: Floats

    @cached_property
    def positions(self) -> dict[tuple[Placement, ...], int]:
        """Where a layout stands, by its placements."""
        return {layout.placements: i for i, layout in enumerate(self.layouts)}

    @cached_property
    def _trees(self) -> dict[tuple[int, tuple[int, ...]], "_Tree"]:
        return {}

    def index(self, layout: Layout) -> int:
        """Where a layout stands.

        Raises:
            KeyError: the tensor cannot be in it.
        """
        return self.positions[layout.placements]

    def tree_price(self, src: int, wanted: tuple[int, ...]) -> float:
        """The price of the cheapest tree of steps from a layout to several."""
        return self._tree(src, wanted).price

    def tree(self, src: int, wanted: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The steps of that tree, each before those that go on from it."""
        return self._tree(src, wanted).steps

    def _tree(self, src: int, wanted: tuple[int, ...]) -> "_Tree":
        goals = tuple(sorted({goal for goal in wanted if goal != src}))
        if not goals:
            return _Tree(0.0, ())
        if (src, goals) not in self._trees:
            make = _exact_tree if len(goals) <= MAX_EXACT else _grown_tree
            self._trees[src, goals] = make(self, src, goals)
        return self._trees[src, goals]

    def path(self, src: int, dst: int) -> list[tuple[int, int]]:
        """The steps of a cheapest path, as few as can be; steps of no price may loop.

        Raises:
            ValueError: no steps lead there.
        """
        came, reached = {src: src}, [src]
        for here in reached:
            if dst in came:
                break
            least = self.prices[here, dst]
            through = self.steps[here] + self.prices[:, dst]
            tight = np.isfinite(through) & (through <= least * (1 + 1e-12))
            for there in np.flatnonzero(tight).tolist():
                if there not in came:
                    came[there] = here
                    reached.append(there)
        if dst not in came:
            raise ValueError(
                f"no steps from {self.layouts[src]} to {self.layouts[dst]}"
            )
        steps = []
        while dst != src:
            steps.append((came[dst], dst))
            dst = came[dst]
        return steps[::-1]


@dataclass(frozen=True)
class _Tree:
    price: float
    steps: tuple[tuple[int, int], ...]


def make_domain(
    shape: Shape,
    dtype: torch.dtype,
    mesh: Mesh,
    placements: Sequence[Sequence[Placement]],
    price: StepPrice,
) -> Domain:
    """All layouts made of some placements, and what changing between them costs.

    Args:
        placements: what each axis may have; layouts that do not exist (two reductions,
            a dim too many, a halo on a dim cut twice) are left out.
        price: of one step.
    """
    options = tuple(tuple(dict.fromkeys(axis)) for axis in placements)
    frame = _frame(mesh, options, len(shape))
    layouts = frame.layouts
    steps = np.full((len(layouts), len(layouts)), np.inf)
    np.fill_diagonal(steps, 0.0)
    for i, j, axes, rule in frame.steps:
        change = Change((shape,), dtype, layouts[i], layouts[j], axes)
        steps[i, j] = price(Step(change, rule))
    itemsize = dtype.itemsize
    local = np.array([largest_part(shape, x) * itemsize for x in layouts], dtype=float)
    return Domain(layouts, steps, _closure(steps), local)


def _exists(placements: Sequence[Placement], num_dims: int) -> bool:
    reductions = {p.reduction for p in placements if isinstance(p, Partial)}
    cut = [p.dim for p in placements if isinstance(p, Split)]
    halos = {p.dim for p in placements if isinstance(p, Split) and any(p.halo)}
    fits = all(dim < num_dims for dim in cut)
    return fits and len(reductions) <= 1 and all(cut.count(dim) == 1 for dim in halos)


def _has_halo(placement: Placement) -> bool:
    return isinstance(placement, Split) and any(placement.halo)


@dataclass(frozen=True)
class _Frame:
    """What domains of one mesh share, whatever their shape."""

    layouts: tuple[Layout, ...]
    steps: tuple[tuple[int, int, tuple[str, ...], Rule], ...]


@lru_cache(maxsize=1024)
def _frame(
    mesh: Mesh, options: tuple[tuple[Placement, ...], ...], num_dims: int
) -> _Frame:
    layouts = tuple(
        Layout(mesh, picked)
        for picked in product(*options)
        if _exists(picked, num_dims)
    )
    positions = {layout.placements: i for i, layout in enumerate(layouts)}
    steps = []
    for i, src in enumerate(layouts):
        for placements in _neighbours(src, positions, options):
            j = positions[placements]
            step = direct_step((), torch.float32, src, layouts[j])
            if step is not None:
                steps.append((i, j, step.change.axes, step.rule))
    return _Frame(layouts, tuple(steps))


def _neighbours(
    src: Layout,
    positions: dict[tuple[Placement, ...], int],
    options: Sequence[Sequence[Placement]],
) -> Iterator[tuple[Placement, ...]]:
    """Layouts that differ on one axis, or alike on several."""
    here = src.placements
    for count in range(1, len(here) + 1):
        for axes in combinations(range(len(here)), count):
            old = {here[a] for a in axes}
            if len(old) > 1:
                continue
            for new in options[axes[0]]:
                if new in old or not _may_step(here[axes[0]], new, count):
                    continue
                there = list(here)
                for a in axes:
                    there[a] = new
                if tuple(there) in positions:
                    yield tuple(there)


def _may_step(old: Placement, new: Placement, num_axes: int) -> bool:
    """Whether a change is worth a step: halos come from, and go to, their own dim."""
    if isinstance(old, Partial) and isinstance(new, Partial):
        return False
    if not (_has_halo(old) or _has_halo(new)):
        # Several axes at once save moves only where something is reduced or gathered.
        return num_axes == 1 or not isinstance(old, Broadcast)
    if num_axes > 1 or not (isinstance(old, Split) and isinstance(new, Split)):
        return num_axes == 1 and isinstance(old, Broadcast) and not _is_adjoint(new)
    if old.dim != new.dim or (_has_halo(old) and _has_halo(new)):
        return False
    return (
        _is_adjoint(old)
        or (_has_halo(new) and not _is_adjoint(new))
        or (_has_halo(old) and not _is_adjoint(old))
    )


def _is_adjoint(placement: Placement) -> bool:
    return isinstance(placement, Split) and placement.adjoint


def _closure(steps: Floats) -> Floats:
    """Shortest paths between all pairs (Floyd and Warshall)."""
    prices = steps.copy()
    for k in range(len(prices)):
        np.minimum(prices, prices[:, k, None] + prices[None, k], out=prices)
    return prices


def _exact_tree(domain: Domain, src: int, goals: tuple[int, ...]) -> _Tree:
    """The cheapest tree, by what it costs to reach each set of goals from anywhere."""
    prices = domain.prices
    full = (1 << len(goals)) - 1
    cost: dict[int, Floats] = {}
    at: dict[int, npt.NDArray[np.intp]] = {}
    part: dict[int, npt.NDArray[np.intp]] = {}
    for i, goal in enumerate(goals):
        cost[1 << i] = prices[:, goal]
        at[1 << i] = np.full(len(prices), goal)
    for subset in range(1, full + 1):
        if subset in cost:
            continue
        halves = list(_halves(subset))
        joined = np.stack([cost[h] + cost[subset ^ h] for h in halves])
        which = joined.argmin(axis=0)
        best = joined.min(axis=0)
        through = prices + best[None, :]
        at[subset] = through.argmin(axis=1)
        cost[subset] = through.min(axis=1)
        part[subset] = np.array(halves)[which]
    pairs: list[tuple[int, int]] = []

    def walk(here: int, subset: int) -> None:
        there = int(at[subset][here])
        pairs.extend(domain.path(here, there))
        if subset in part:
            half = int(part[subset][there])
            walk(there, half)
            walk(there, subset ^ half)

    walk(src, full)
    return _Tree(float(cost[full][src]), tuple(dict.fromkeys(pairs)))


def _halves(subset: int) -> Iterator[int]:
    """The ways to part a set in two, each once."""
    half = (subset - 1) & subset
    while half:
        if half > (subset ^ half):
            yield half
        half = (half - 1) & subset


def _grown_tree(domain: Domain, src: int, goals: tuple[int, ...]) -> _Tree:
    """A good tree: to the goal that is nearest to what there is, again and again."""
    reached, left, pairs = [src], list(goals), []
    while left:
        table = domain.prices[np.ix_(reached, left)]
        i, j = divmod(int(table.argmin()), len(left))
        for step in domain.path(reached[i], left.pop(j)):
            if step[1] not in reached:
                pairs.append(step)
                reached.append(step[1])
    return _Tree(float(sum(domain.steps[a, b] for a, b in pairs)), tuple(pairs))
