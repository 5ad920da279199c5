"""A mesh: ranks arranged in a grid with named axes.

A mesh is a pure value: no process group is made, so that plans for thousands of ranks
and in-process twins need none. `placet.wire` binds ranks to processes when a job runs.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*")


@dataclass(frozen=True, init=False)
class Mesh:
    """Ranks in a grid with named axes.

    >>> mesh = Mesh("data=2, model=2")
    >>> mesh.ranks
    (0, 1, 2, 3)
    >>> mesh.coordinate(3)
    (1, 1)
    >>> mesh.group("data", rank=3)
    (1, 3)

    Args:
        axes: names and sizes, outermost first, as `"data=2, model=2"`.
        ranks: the ranks in row-major order; 0, 1, 2, ... when left out. Another order
            is another mesh: boxing to it is a rotation of the parts.

    Raises:
        ValueError: an axis named twice, a size below 1, or the wrong number of ranks.
        TypeError: axes that are no string.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    _hash: int = field(repr=False, compare=False)

    def __init__(self, axes: str, ranks: Sequence[int] | None = None) -> None:
        if not isinstance(axes, str):
            raise TypeError(f"Mesh({axes!r}): write axes as 'data=2, model=2'")
        names, sizes = _parse(axes)
        num_ranks = math.prod(sizes)
        ranks = tuple(range(num_ranks)) if ranks is None else tuple(ranks)
        if len(ranks) != num_ranks or len(set(ranks)) != num_ranks:
            raise ValueError(
                f"Mesh({axes!r}) needs {num_ranks} different ranks, got {ranks}"
            )
        if any(type(rank) is not int or rank < 0 for rank in ranks):
            raise ValueError(
                f"Mesh({axes!r}): ranks are whole numbers from 0 on, got {ranks}"
            )
        object.__setattr__(self, "axes", names)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "_hash", hash((names, sizes, ranks)))

    def __hash__(self) -> int:
        return self._hash  # kept: layouts are keys everywhere, and ranks may be many

    def __repr__(self) -> str:
        grid = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.sizes, strict=True))
        if self.ranks == tuple(range(len(self.ranks))):
            return f"Mesh({grid!r})"
        return f"Mesh({grid!r}, ranks={list(self.ranks)})"

    @property
    def num_ranks(self) -> int:
        """How many ranks the mesh has."""
        return len(self.ranks)

    def axis_index(self, axis: str) -> int:
        """The position of a named axis.

        Raises:
            ValueError: the mesh has no such axis.
        """
        if axis not in self.axes:
            known = ", ".join(map(repr, self.axes))
            raise ValueError(f"{self!r} has no axis {axis!r}; its axes are {known}")
        return self.axes.index(axis)

    def size(self, axis: str) -> int:
        """How many ranks stand along a named axis."""
        return self.sizes[self.axis_index(axis)]

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Where a rank stands: its index along each axis.

        Raises:
            ValueError: the rank is not in the mesh.
        """
        found = _coordinates(self).get(rank)
        if found is None:
            raise ValueError(f"rank {rank} is not in {self!r}")
        return found

    def rank_at(self, coordinate: Sequence[int]) -> int:
        """The rank at a coordinate."""
        index = 0
        for c, size in zip(coordinate, self.sizes, strict=True):
            index = index * size + c
        return self.ranks[index]

    def group(self, axes: str | Sequence[str], rank: int) -> tuple[int, ...]:
        """The ranks that differ from `rank` only along `axes`, in the order of `axes`.

        With several axes the first named varies slowest.
        """
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        here = list(self.coordinate(rank))
        where = [self.axis_index(a) for a in names]
        members = []
        for index in product(*(range(self.sizes[i]) for i in where)):
            for i, c in zip(where, index, strict=True):
                here[i] = c
            members.append(self.rank_at(here))
        return tuple(members)


def _parse(axes: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names: list[str] = []
    sizes: list[int] = []
    for item in axes.split(","):
        found = _AXIS.fullmatch(item)
        if found is None:
            raise ValueError(
                f"Mesh({axes!r}): cannot read {item.strip()!r}; "
                "write axes as 'data=2, model=2'"
            )
        name, size = found[1], int(found[2])
        if name in names:
            raise ValueError(f"Mesh({axes!r}): axis {name!r} is named twice")
        if size < 1:
            raise ValueError(
                f"Mesh({axes!r}): axis {name!r} needs a size of at least 1"
            )
        names.append(name)
        sizes.append(size)
    return tuple(names), tuple(sizes)


@lru_cache(maxsize=256)
def _coordinates(mesh: Mesh) -> dict[int, tuple[int, ...]]:
    grid = product(*(range(n) for n in mesh.sizes))
    return dict(zip(mesh.ranks, grid, strict=True))
