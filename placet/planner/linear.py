"""Linear programs, put together from arrays, and bounds that need no trust.

    least c x  with  lower <= A x <= upper,  0 <= x <= most

For any prices L on the rows (L >= 0 where only the lower side binds, <= 0 where only
the upper does, -> Model.fair), no feasible x costs less than

    sum_i min over b in [lower_i, upper_i] of L_i b + sum_j most_j min(0, d_j)
    where d = c - A' L

however inexact the solver that found L was. Columns that rows bound already have no
`most`, so that an exact L says all: `duals.py` makes sure that none is negative.

Source of the solver: Q. Huangfu and J. A. J. Hall, "Parallelizing the dual revised
simplex method", Mathematical Programming Computation 10 (2018) (HiGHS, in SciPy).
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from placet.planner.problem import Floats

Numbers = npt.NDArray[np.int64]
SCALE = 1e3
"""The largest price as the solver sees it; its tolerances are absolute."""


@dataclass(frozen=True, eq=False)
class Solved:
    """What a solver answered.

    Args:
        values: of the columns; None if it found none.
        cost: of them.
        bound: of every feasible point, where the solver gives one.
        status: "optimal", "infeasible" or "time" (stopped early).
        prices: (rows,) of the rows.
    """

    values: Floats | None
    cost: float
    bound: float
    status: str
    prices: Floats | None = None


class Builder:
    """Collects columns, rows and entries."""

    def __init__(self) -> None:
        self.num_columns = 0
        self.num_rows = 0
        self._costs: list[Floats] = []
        self._most: list[Floats] = []
        self._integer: list[npt.NDArray[np.bool_]] = []
        self._sides: list[tuple[Floats, Floats]] = []
        self._entries: list[tuple[Numbers, Numbers, Floats]] = []

    def columns(
        self, costs: npt.ArrayLike, *, integer: bool = False, most: float = 1.0
    ) -> Numbers:
        """New columns, between 0 and `most`; returns their numbers."""
        values = np.atleast_1d(np.asarray(costs, dtype=float))
        start = self.num_columns
        self.num_columns += len(values)
        self._costs.append(values)
        self._most.append(np.full(len(values), most))
        self._integer.append(np.full(len(values), integer))
        return np.arange(start, self.num_columns)

    def rows(self, count: int, lower: float, upper: float) -> Numbers:
        """New rows; returns their numbers."""
        start = self.num_rows
        self.num_rows += count
        self._sides.append((np.full(count, lower), np.full(count, upper)))
        return np.arange(start, self.num_rows)

    def put(self, rows: npt.ArrayLike, columns: npt.ArrayLike, values: object) -> None:
        """Adds entries; those that meet add up."""
        r, c, v = np.broadcast_arrays(rows, columns, np.asarray(values, dtype=float))
        self._entries.append((r.ravel(), c.ravel(), v.ravel()))

    def build(self) -> "Model":
        """The program."""
        r, c, v = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        matrix = csr_array((v, (r, c)), shape=(self.num_rows, self.num_columns))
        lower, upper = (np.concatenate(x) for x in zip(*self._sides, strict=True))
        costs, most = np.concatenate(self._costs), np.concatenate(self._most)
        integer = np.concatenate(self._integer)
        return Model(costs, most, integer, matrix, lower, upper)


@dataclass(frozen=True, eq=False)
class Model:
    """A linear program, or a mixed-integer one.

    Args:
        costs: (columns,).
        most: (columns,) the largest value.
        integer: (columns,) whether a column must be 0 or 1.
        matrix: (rows, columns).
        lower, upper: (rows,); equal for equations.
    """

    costs: Floats
    most: Floats
    integer: npt.NDArray[np.bool_]
    matrix: csr_array
    lower: Floats
    upper: Floats

    @property
    def scale(self) -> float:
        """What costs are multiplied by before they are solved."""
        largest = float(np.abs(self.costs).max(initial=0.0))
        return SCALE / largest if largest > 0 else 1.0

    def relaxed(self, seconds: float, method: str = "highs") -> Solved:
        """Solves without asking for whole numbers; `prices` are what proves a bound."""
        if seconds <= 0:
            return Solved(None, math.inf, -math.inf, "time")
        equal = self.lower == self.upper
        above, below = (
            ~equal & np.isfinite(self.lower),
            ~equal & np.isfinite(self.upper),
        )
        found = linprog(
            self.costs * self.scale,
            A_ub=_stacked(self.matrix[below], -self.matrix[above]),
            b_ub=np.concatenate([self.upper[below], -self.lower[above]]),
            A_eq=self.matrix[equal],
            b_eq=self.lower[equal],
            bounds=np.stack([np.zeros_like(self.most), self.most], 1),
            method=method,
            options={"time_limit": seconds},
        )
        if found.status == 2:
            return Solved(None, math.inf, math.inf, "infeasible")
        if found.status != 0:
            return Solved(None, math.inf, -math.inf, "time")
        prices = np.zeros(len(self.lower))
        prices[equal] = found.eqlin.marginals
        count = int(below.sum())
        prices[below] += found.ineqlin.marginals[:count]
        prices[above] -= found.ineqlin.marginals[count:]
        cost = float(self.costs @ found.x)
        return Solved(found.x, cost, -math.inf, "optimal", prices / self.scale)

    def fair(self, prices: Floats) -> Floats:
        """Prices of rows, without those of the wrong sign for a side that is open."""
        left = np.where(np.isfinite(self.lower), prices, np.minimum(prices, 0.0))
        return np.where(np.isfinite(self.upper), left, np.maximum(left, 0.0))

    def solved(self, seconds: float, gap: float) -> Solved:
        """Solves with whole numbers, until a relative gap."""
        started = time.monotonic()
        found = milp(
            self.costs * self.scale,
            integrality=self.integer.astype(int),
            bounds=Bounds(0, self.most),
            constraints=LinearConstraint(self.matrix, self.lower, self.upper),
            options={"time_limit": max(seconds, 0.01), "mip_rel_gap": gap},
        )
        late = time.monotonic() - started > seconds
        if found.status == 2:
            return Solved(None, math.inf, math.inf, "infeasible")
        bound = found.mip_dual_bound
        known = -math.inf if bound is None else float(bound) / self.scale
        # The solver's own tolerance, in rows and columns of about 1 each.
        known -= abs(known) * 1e-9
        if found.x is None:
            return Solved(None, math.inf, known, "time")
        status = "optimal" if found.status == 0 and not late else "time"
        return Solved(found.x, float(self.costs @ found.x), known, status)


def _stacked(first: csr_array, second: csr_array) -> csr_array:
    data = np.concatenate([first.data, second.data])
    indices = np.concatenate([first.indices, second.indices])
    pointers = np.concatenate([first.indptr, second.indptr[1:] + first.indptr[-1]])
    shape = (first.shape[0] + second.shape[0], first.shape[1])
    return csr_array((data, indices, pointers), shape=shape)
