"""Which mesh: all grids of a number of ranks, solved one after another.

    n = s_1 * ... * s_k,  k <= 3,  every s_i >= 2        -> factorisations, meshes_of

The order of sizes matters, as the last axis' ranks are neighbours. A mesh whose bound
reaches the best plan found so far cannot win and is left at its bound. The bound of all
is the least of the meshes' bounds                       -> search_meshes
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placet.placement.mesh import Mesh
from placet.planner.problem import Problem, Solution
from placet.planner.search import solve

NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Meshes:
    """What a search over meshes found.

    Args:
        solutions: per mesh; one that was cut off has no assignment.
        best: the mesh of the cheapest plan; None if no plan was found.
        problem: of that mesh.
        bound: no plan on any of the meshes costs less.
        is_complete: whether every mesh was solved or shown not to win.
    """

    solutions: tuple[tuple[Mesh, Solution], ...]
    best: int | None
    problem: Problem | None
    bound: float
    is_complete: bool


def factorisations(number: int, max_factors: int = 3) -> tuple[tuple[int, ...], ...]:
    """All ways to write a number as an ordered product of factors of at least 2.

    >>> factorisations(8)
    ((8,), (2, 4), (4, 2), (2, 2, 2))
    """
    if number == 1:
        return ((1,),)

    def of(left: int, count: int) -> list[tuple[int, ...]]:
        if count == 1:
            return [(left,)] if left > 1 else []
        firsts = [f for f in range(2, left) if left % f == 0]
        return [(f, *rest) for f in firsts for rest in of(left // f, count - 1)]

    return tuple(f for k in range(1, max_factors + 1) for f in of(number, k))


def meshes_of(
    num_ranks: int, *, max_axes: int = 3, names: Sequence[str] = NAMES
) -> tuple[Mesh, ...]:
    """All meshes of a number of ranks, those with the fewest axes first.

    Raises:
        ValueError: fewer names than axes.
    """
    if len(names) < max_axes:
        raise ValueError(f"names={tuple(names)!r}: {max_axes} axes need as many names")
    return tuple(
        Mesh(", ".join(f"{a}={s}" for a, s in zip(names, sizes, strict=False)))
        for sizes in factorisations(num_ranks, max_axes)
    )


def search_meshes(
    build: Callable[[Mesh], Problem],
    num_ranks: int,
    *,
    max_axes: int = 3,
    names: Sequence[str] = NAMES,
    meshes: Sequence[Mesh] | None = None,
    time_limit_seconds: float = 60.0,
    solver: Callable[..., Solution] = solve,
) -> Meshes:
    """Solves the problem of every mesh.

    Args:
        build: the problem on a mesh.
        meshes: these, instead of all of `num_ranks`.
        time_limit_seconds: for all; each gets an equal share of what is left.
        solver: takes `time_limit_seconds` and `cutoff`.

    Raises:
        ValueError: a mesh of another number of ranks.
    """
    tried = tuple(meshes or meshes_of(num_ranks, max_axes=max_axes, names=names))
    for mesh in tried:
        if mesh.num_ranks != num_ranks:
            raise ValueError(f"{mesh!r} has not num_ranks={num_ranks}")
    deadline = time.monotonic() + time_limit_seconds
    solutions: list[tuple[Mesh, Solution]] = []
    best: int | None = None
    kept: Problem | None = None
    cost = float("inf")
    for i, mesh in enumerate(tried):
        problem = build(mesh)
        share = max(deadline - time.monotonic(), 0.0) / (len(tried) - i)
        cutoff = None if best is None else cost
        found = solver(problem, time_limit_seconds=share, cutoff=cutoff)
        if found.assignment is not None and found.cost < cost:
            best, kept, cost = i, problem, found.cost
        solutions.append((mesh, found))
    bound = min(solution.bound for _, solution in solutions)
    complete = all(s.is_complete or s.bound >= cost for _, s in solutions)
    return Meshes(tuple(solutions), best, kept, min(bound, cost), complete)
