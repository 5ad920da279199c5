"""What plan() gives is one device's step in float64, on any number of ranks.

ranks   2, 3, 4 and 6, as lines and as grids
rows    12, which all of them divide, and 7, which none does
asked   least bytes; least seconds on any mesh; within a memory

Each is run by all its ranks: loss, gradients, buffers, bytes received and sent.
"""

from itertools import product

import pytest
import torch

from placet.cost.machine import Machine
from placet.placement.mesh import Mesh
from placet.planner.plan import Plan
from testing.models.example import of_rows
from testing.models.zoo import TINY
from testing.planned import assert_plan_is_one_device

SEED = 4
SEARCH_SECONDS = 2.0
"""A plan that is not the best must be right as well."""

MESHES = ("a=2", "a=3", "a=4", "a=2, b=2", "a=6", "a=2, b=3")
ROWS = (12, 7)
MACHINE = Machine("made up", (("matmul", "float32", 1e11),), 2e10, 5e-6)

QUICK = [("MLP", "a=2, b=2", 12), ("MLP", "a=3", 7), ("DLRM", "a=6", 7)]
REST = [case for case in product(TINY, MESHES, ROWS) if case not in QUICK]
EVERY = [*QUICK, *(pytest.param(*case, marks=pytest.mark.prove) for case in REST)]


def planned(name: str, mesh: str, rows: int, memory: int | str | None = None) -> Plan:
    """A plan of least bytes, held against one device."""
    torch.manual_seed(SEED)
    placed = Mesh(mesh)
    found, _ = assert_plan_is_one_device(
        of_rows(TINY[name], rows),
        placed.num_ranks,
        mesh=placed,
        objective="bytes",
        memory=memory,
        time_limit_seconds=SEARCH_SECONDS,
    )
    return found


@pytest.mark.parametrize(("name", "mesh", "rows"), EVERY)
def test_of_least_bytes(name: str, mesh: str, rows: int) -> None:
    assert planned(name, mesh, rows).division.mesh == Mesh(mesh)


@pytest.mark.prove
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("name", TINY)
def test_of_least_seconds_on_any_mesh(name: str, num_ranks: int, rows: int) -> None:
    torch.manual_seed(SEED)
    found, _ = assert_plan_is_one_device(
        of_rows(TINY[name], rows),
        num_ranks,
        machine=MACHINE,
        time_limit_seconds=SEARCH_SECONDS,
    )
    assert found.unit == "seconds"
    assert found.division.mesh.num_ranks == num_ranks


@pytest.mark.prove
@pytest.mark.parametrize(
    ("name", "mesh"),
    [("DLRM", "a=2, b=2"), ("DLRM", "a=3"), ("DLRM", "a=6"), ("GPT", "a=3")],
)
def test_within_a_memory(name: str, mesh: str) -> None:
    free = planned(name, mesh, ROWS[0], memory="1GiB")
    limit = int(0.9 * free.memory_bytes)
    tight = planned(name, mesh, ROWS[0], memory=limit)
    assert tight.memory_bytes <= limit
    assert tight.division != free.division
