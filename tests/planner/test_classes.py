"""Layers that are alike are found, and what differs is never tied."""

from dataclasses import replace

import numpy as np
import pytest

from placet.planner.classes import find_classes, ties_of, untied
from placet.planner.problem import Problem
from testing.problems import random_problem, repeated_problem


def _deep(times: int) -> Problem:
    rng = np.random.default_rng(3)
    return repeated_problem(rng, random_problem(rng, num_nodes=6), times)


def test_classes_do_not_grow_with_depth() -> None:
    counts = [len(ties_of(find_classes(_deep(times))).nodes) for times in (3, 9)]
    # Six of the layers, and the first reader of the first, which has an input less.
    assert counts == [7, 7]


def test_what_belongs_to_no_module_is_told_apart_by_its_neighbours() -> None:
    """As sums of gradients are: one more for every layer, all of one label."""
    counts = []
    for times in (3, 9):
        problem = _deep(times)
        nodes = [
            replace(node, label="add", name=f"add_{i}") if i % 6 == 3 else node
            for i, node in enumerate(problem.nodes)
        ]
        found = find_classes(replace(problem, nodes=tuple(nodes)))
        counts.append(len(ties_of(found).nodes))
    assert counts == [7, 7]


def test_members_have_equal_tables() -> None:
    problem = find_classes(_deep(4))
    for group in ties_of(problem).nodes:
        tables = {problem.nodes[n].input_layouts.tobytes() for n in group}
        assert len(tables) == 1


def test_another_cost_is_another_class() -> None:
    problem = _deep(4)
    nodes = list(problem.nodes)
    nodes[7] = replace(nodes[7], costs=nodes[7].costs + 1)
    changed = find_classes(replace(problem, nodes=tuple(nodes)))
    plain = find_classes(problem)
    assert (
        len({n.kind for n in changed.nodes}) == len({n.kind for n in plain.nodes}) + 1
    )


def test_wrong_kinds_are_refused() -> None:
    problem = _deep(2)
    nodes = tuple(replace(node, kind=0) for node in problem.nodes)
    with pytest.raises(ValueError, match="other choices"):
        ties_of(replace(problem, nodes=nodes))


def test_without_kinds_everyone_is_alone() -> None:
    problem = _deep(2)
    assert ties_of(problem) == untied(problem)
    assert ties_of(problem).is_trivial
