"""What plan(), Plan.load and pins say of input that makes no sense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from placet.errors import CaptureError, PlanError
from placet.placement.mesh import Mesh
from placet.placement.placement import B, S
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.planner.planning import graph_for, plan
from placet.planner.wanted import parse_bytes

BATCH = torch.zeros(8, 4), torch.zeros(8, 2)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return mse_loss(model(batch[0]), batch[1])


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 2))


def planned(
    model: Any = None, batch: Any = BATCH, of: Any = loss, **options: Any
) -> Plan:
    options = {"objective": "bytes", "mesh": Mesh("a=2"), **options}
    return plan(model or small(), batch, of, time_limit_seconds=5, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "speed"}, "choose 'bytes' or 'seconds'"),
        ({"precision": "fp16"}, "choose 'fp32' or 'bf16'"),
        ({"mesh": "a=2"}, r"give a mesh, such as placet\.Mesh"),
        ({"max_axes": 0}, "at least 1 axis"),
        ({"pins": Pin("*", home=B)}, "give a list of pins"),
        ({"pins": ["0.weight"]}, "give a list of pins"),
        ({"pins": [Pin("0.weight", "z", home=B)]}, "has the axes a$"),
        (
            {"pins": [Pin("0.weight", home=S(0)), Pin("0.*", home=B)]},
            r"can have: S\(0\); it is pinned by '0.weight' as well",
        ),
        ({"model": lambda x: x}, "is a function: give an nn.Module"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        planned(**options)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_time_limits_are_above_zero(seconds: float) -> None:
    with pytest.raises(ValueError, match="give a time above 0"):
        plan(small(), BATCH, loss, mesh=Mesh("a=2"), time_limit_seconds=seconds)


@pytest.mark.parametrize("text", ["8 XB", 0, -5, "", ".", "1.2.3GB", float("nan")])
def test_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(ValueError, match="write a size such as '8GiB'"):
        parse_bytes(text)


def test_pins_name_placements() -> None:
    with pytest.raises(ValueError, match=r"'S\(0\)' is no placement"):
        Pin("*", home="S(0)")  # type: ignore[arg-type]


class Changed(nn.Module):
    """Applies `change` to its input or its weight in place."""

    def __init__(self, change: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.change = change
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.change(self, x)
        found: Tensor = self.inner(x)
        return found


def double_weight(module: nn.Module, _: Tensor) -> None:
    with torch.no_grad():
        module.inner.weight.mul_(2)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: nn.LazyLinear(2), "'weight' has no shape yet"),
        (lambda: Changed(lambda _, x: x.mul_(2)), "changes tensor 0 of the batch in"),
        (lambda: Changed(double_weight), "changes 'inner.weight' in place"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_that_cannot_be_captured(
    model: Callable[[], nn.Module], said: str
) -> None:
    with pytest.raises(CaptureError, match=said):
        planned(model())


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((torch.zeros(0, 4), torch.zeros(0, 2)), r"has no rows, shape \[0, 4\]"),
        (tuple(t.to("meta") for t in BATCH), "the batch is on the meta device"),
    ],
)
def test_batches_that_cannot_be_captured(batch: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        planned(batch=batch)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (lambda m, b: (loss(m, b), 1, 2), "a tuple of 3"),
        (lambda m, b: 1.0, "the loss is of float"),
        (lambda m, b: m(b[0]), r"the loss is of shape \[8, 2\]"),
    ],
)
def test_losses_that_are_none(of: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        planned(of=of)


def test_files_that_hold_no_plan(tmp_path: Path) -> None:
    good = json.loads(planned().to_json())
    without_cost = {k: v for k, v in good.items() if k != "cost"}
    texts = {
        "": "no plan that can be read",
        "[]": "it holds a list",
        json.dumps(without_cost): "it has no 'cost'",
        json.dumps({**good, "cost": "low"}): "its cost is 'low', not a number",
        json.dumps({**good, "unit": "apples"}): "its unit is 'apples'",
        json.dumps({**good, "format": "placet-plan-9"}): "not 'placet-plan-1'",
    }
    for text, said in texts.items():
        with pytest.raises(PlanError, match=said):
            Plan.from_json(text)
    file = tmp_path / "plan.json"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="is no text"):
        Plan.load(file)


def test_a_graph_of_another_model_is_not_explained() -> None:
    graph = graph_for(nn.Linear(4, 2), BATCH, loss, num_ranks=2)
    with pytest.raises(PlanError, match=r"parameter or buffer '0\.weight', which"):
        planned().explain(graph, "weight")
