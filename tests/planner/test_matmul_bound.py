"""The bound of matrix products against its own definition and against all grids."""

import math

import numpy as np
import pytest

from placet.planner.matmul_bound import (
    _least_faces,
    bound_words,
    bytes_over_bound,
    grid_words,
)

SHAPES = [(64, 64, 64), (4096, 64, 8), (512, 512, 4), (128, 1024, 32), (1000, 30, 7)]


def _grids(number: int) -> list[tuple[int, int, int]]:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return [
        (p, q, number // p // q)
        for p in divisors
        for q in divisors
        if number % (p * q) == 0
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_grid_moves_less_than_the_bound(shape: tuple[int, int, int]) -> None:
    for number in (1, 2, 3, 8, 24, 64, 512):
        best = min(grid_words(shape, grid) for grid in _grids(number))
        assert float(best) >= bound_words(shape, number) * (1 - 1e-12) - 1e-9


@pytest.mark.parametrize(
    ("shape", "number", "grid"),
    [
        ((4096, 64, 8), 32, (32, 1, 1)),
        ((512, 512, 4), 64, (8, 8, 1)),
        ((64, 64, 64), 64, (4, 4, 4)),
        ((256, 128, 64), 64, (8, 4, 2)),
    ],
)
def test_the_ideal_grid_meets_the_bound(
    shape: tuple[int, int, int], number: int, grid: tuple[int, int, int]
) -> None:
    """One grid of each regime: 1-D, 2-D, 3-D."""
    assert float(grid_words(shape, grid)) == pytest.approx(bound_words(shape, number))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", [1, 2, 7, 40, 300, 5000])
def test_the_formulas_solve_the_problem_they_come_from(
    shape: tuple[int, int, int], number: int
) -> None:
    """Least x + y + z with x y z >= (mnk / P)^2 and each at least its share."""
    m, n, k = sorted(shape, reverse=True)
    least = np.array([n * k, m * k, m * n]) / number
    volume = (m * n * k / number) ** 2
    x, y = (low * np.geomspace(1, 4 * number, 1500) for low in least[:2])
    z = np.maximum(volume / (x[:, None] * y[None, :]), least[2])
    brute = float((x[:, None] + y[None, :] + z).min())
    found = _least_faces(m, n, k, number)
    assert found <= brute * (1 + 1e-9)
    assert found == pytest.approx(brute, rel=2e-3)


def test_ratios() -> None:
    assert bytes_over_bound(0.0, (8, 8, 8), 1, 4) == 1.0
    assert bytes_over_bound(5.0, (8, 8, 8), 1, 4) == math.inf
    words = float(grid_words((64, 64, 64), (4, 4, 4)))
    assert bytes_over_bound(words * 8, (64, 64, 64), 64, 4) == pytest.approx(2.0)
