"""Every change of placement on small meshes: right, as predicted, near the bound."""

from pathlib import Path

import pytest

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from tests.boxing.lockstep import check, layouts, total_received

TABLE = Path(__file__).with_name("above_bound.txt")
QUICK = [
    ("a=2, b=2", (5, 3)),
    ("a=2, b=2", (4, 4)),
    ("a=2, b=2", (1, 3)),
    ("a=2, b=2", (0, 2)),
    ("a=2", (5, 3)),
    ("a=3", (4, 2)),
    ("a=4", (6, 9)),
    ("a=4", (3, 0)),
    ("a=2, b=3", (7, 5)),
]
LONG = [
    *[("a=2, b=3", shape) for shape in [(6, 6), (5, 3), (1, 1), (13, 2), (2, 0)]],
    *[("a=3, b=2", shape) for shape in [(6, 6), (5, 3), (1, 4)]],
    *[("a=2, b=2", shape) for shape in [(2, 2), (7, 6), (3, 3), (9, 1)]],
    *[("a=4", shape) for shape in [(8, 4), (5, 5), (1, 2)]],
    *[("a=3", shape) for shape in [(3, 3), (7, 4), (2, 1)]],
]


def listed() -> dict[str, str]:
    """The checked-in table: `mesh | shape | src -> dst` and what is above its bound."""
    lines = [x for x in TABLE.read_text().splitlines() if x and x[0] != "#"]
    return dict(line.rsplit(" | ", 1) for line in lines)


def check_all(mesh: Mesh, shape: tuple[int, ...]) -> dict[str, str]:
    """Check all pairs; return those above their bound, in the table's form."""
    above = {}
    for src in layouts(mesh):
        for dst in layouts(mesh):
            plan = check(shape, src, dst)
            received, bound = total_received(plan), plan.bound_bytes()
            assert received >= bound, f"{plan!r} beats the bound: the bound is wrong"
            if received > bound:
                what = f"{received // 8} elements received, bound {bound // 8}"
                above[f"{_grid(mesh)} | {shape} | {_pair(src, dst)}"] = what
    return above


def _grid(mesh: Mesh) -> str:
    return "x".join(map(str, mesh.sizes))


def _pair(src: Layout, dst: Layout) -> str:
    return f"{list(src.placements)} -> {list(dst.placements)}"


def _own(mesh: Mesh, shape: tuple[int, ...]) -> dict[str, str]:
    start = f"{_grid(mesh)} | {shape} | "
    return {key: text for key, text in listed().items() if key.startswith(start)}


@pytest.mark.parametrize(("axes", "shape"), QUICK)
def test_boxing_of_every_pair(axes, shape):
    mesh = Mesh(axes)
    assert check_all(mesh, shape) == _own(mesh, shape)


@pytest.mark.prove
@pytest.mark.parametrize(("axes", "shape"), LONG)
def test_boxing_of_every_pair_on_more_meshes(axes, shape):
    mesh = Mesh(axes)
    assert check_all(mesh, shape) == _own(mesh, shape)


@pytest.mark.parametrize("reduction", ["avg", "max", "min"])
def test_boxing_of_every_pair_with_another_reduction(reduction):
    mesh = Mesh("a=2, b=2")
    for src in layouts(mesh, reduction):
        for dst in layouts(mesh, reduction):
            check((3, 2), src, dst)


def test_table_has_only_cases_that_are_checked():
    cases = {(_grid(Mesh(axes)), str(shape)) for axes, shape in QUICK + LONG}
    assert {tuple(key.split(" | ")[:2]) for key in listed()} <= cases
