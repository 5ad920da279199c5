"""Meshes of a number of ranks, and the search over them."""

import math

import numpy as np
import pytest

from placet.placement.mesh import Mesh
from placet.planner.exhaustive import solve_exhaustively
from placet.planner.meshes import factorisations, meshes_of, search_meshes
from placet.planner.problem import Problem
from testing.problems import random_problem


def test_factorisations_are_all_of_them() -> None:
    assert factorisations(1) == ((1,),)
    assert factorisations(7) == ((7,),)
    assert factorisations(12, 2) == ((12,), (2, 6), (3, 4), (4, 3), (6, 2))
    for number in range(2, 65):
        found = factorisations(number)
        assert len(set(found)) == len(found)
        triples = {
            (a, b, number // a // b)
            for a in range(2, number)
            for b in range(2, number)
            if number % (a * b) == 0 and number // a // b > 1
        }
        assert {f for f in found if len(f) == 3} == triples
        assert all(math.prod(f) == number for f in found)


def test_meshes_have_the_names_given() -> None:
    meshes = meshes_of(8, max_axes=2, names=("x", "y"))
    assert meshes == (Mesh("x=8"), Mesh("x=2, y=4"), Mesh("x=4, y=2"))
    with pytest.raises(ValueError, match="as many names"):
        meshes_of(8, names=("x",))


def _problem_of(mesh: Mesh) -> Problem:
    return random_problem(np.random.default_rng(mesh.sizes))


def test_the_best_mesh_is_found_and_the_others_are_bounded() -> None:
    found = search_meshes(_problem_of, 12)
    costs = [solve_exhaustively(_problem_of(mesh)).cost for mesh, _ in found.solutions]
    assert found.best is not None
    assert costs[found.best] == min(costs)
    assert found.solutions[found.best][1].cost == min(costs)
    assert found.bound == pytest.approx(min(costs))
    assert found.is_complete
    cut_off = [s for _, s in found.solutions if s.assignment is None]
    assert cut_off
    for (_, solution), cost in zip(found.solutions, costs, strict=True):
        assert solution.bound <= cost + 1e-7


def test_meshes_of_other_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="num_ranks=4"):
        search_meshes(_problem_of, 4, meshes=[Mesh("a=2")])
