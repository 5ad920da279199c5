"""A plan at the least memory that is named runs where no more may be had."""

import re
import resource
import sys
from collections.abc import Sequence

import pytest

from placet.errors import PlanError
from placet.placement.mesh import Mesh
from placet.placement.placement import B
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.planner.planning import plan
from testing.hard_limit import Limited, train_within
from testing.models.example import Example
from testing.models.zoo import TINY, vectors
from testing.ranks import run_ranks


def deep() -> Example:
    """With whole parameters a rank holds 16 bytes for each of 12 M of them."""
    return vectors("deep", (1024,) * 13, batch=1024)


def planned(
    example: Example, mesh: str, memory: str | None, pins: Sequence[Pin] = ()
) -> Plan:
    """A plan, in bytes."""
    return plan(
        example.model_fn(),
        example.batch_fn(),
        example.loss,
        mesh=Mesh(mesh),
        memory=memory,
        pins=pins,
        objective="bytes",
        time_limit_seconds=20,
    )


def least_of(example: Example, mesh: str) -> tuple[float, str]:
    """The least memory that a refusal names: number and unit."""
    with pytest.raises(PlanError) as refused:
        planned(example, mesh, "1KiB")
    found = re.search(r"([\d.]+) (\w+) would do", str(refused.value))
    assert found is not None, refused.value
    return float(found[1]), found[2]


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("MLP", "a=2"),
        *(
            pytest.param(name, mesh, marks=pytest.mark.prove)
            for name in ("MLP", "DLRM", "GPT", "VGG")
            for mesh in ("a=2, b=2", "a=4")
        ),
    ],
)
def test_the_least_memory_does_and_a_tenth_less_does_not(name: str, mesh: str) -> None:
    least, unit = least_of(TINY[name], mesh)
    assert planned(TINY[name], mesh, f"{least}{unit}").memory_bytes > 0
    with pytest.raises(PlanError, match="would do"):
        planned(TINY[name], mesh, f"{0.9 * least}{unit}")


@pytest.mark.prove
@pytest.mark.procs
@pytest.mark.skipif(
    sys.platform != "linux" or resource.getrlimit(resource.RLIMIT_DATA)[1] != -1,
    reason="RLIMIT_DATA cannot be set freely here",
)
def test_the_leanest_plan_runs_under_a_hard_limit_and_whole_parameters_do_not() -> None:
    least, unit = least_of(deep(), "a=2")
    lean = planned(deep(), "a=2", f"{least}{unit}")
    whole = planned(deep(), "a=2", None, [Pin("*", home=B)])
    assert whole.memory_bytes > 1.3 * lean.memory_bytes > 100e6
    limit = int(lean.memory_bytes)
    losses = run_ranks(
        2, train_within, Limited(deep, lean.to_json(), limit), carrier="native"
    )
    assert losses[0] == losses[1]
    with pytest.raises(RuntimeError, match="allocate memory"):
        run_ranks(
            2, train_within, Limited(deep, whole.to_json(), limit), carrier="native"
        )
    free = Limited(deep, whole.to_json(), None)
    assert run_ranks(2, train_within, free, carrier="native")[0] == pytest.approx(
        losses[0], rel=1e-4
    )
