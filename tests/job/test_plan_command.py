"""`placet plan`: what it refuses, with exit code 2, and the size of its files."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from placet.job.plan_command import BAD_INPUT, Question, run
from placet.placement.mesh import Mesh
from placet.planner.plan import Plan
from placet.planner.planning import plan
from testing.models.zoo import REAL

RECIPE = '''
"""A recipe to plan for."""
import torch
from torch import nn

import placet.job.job as job_module
from placet.job.data import Data


def toy(*, width: int = 16):
    """Trains a little."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4))
    return job_module.Job(
        model,
        lambda model, x: model(x).square().mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Data(torch.randn(32, 4), 8),
        steps=2,
        name="toy",
    )


def none():
    """Gives no job."""
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "toys_of_plan.py").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "PLACET_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("toys_of_plan", None)


def asked(**options: Any) -> int:
    """The exit code of a question about the toy."""
    given = {"target": "toys_of_plan.py:toy", "objective": "bytes", **options}
    return run(Question(**given))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cluster": "nowhere"}, "--cluster nowhere: No such file"),
        ({"num_ranks": 0}, "-n 0: a plan needs at least 1 rank"),
        ({"num_ranks": 3, "cluster": "gpus16"}, "has 16 ranks"),
        ({"num_ranks": 2, "memory": "100B"}, "memory"),
        ({"num_ranks": 2, "memory": "much"}, "much"),
        ({"num_ranks": 2, "mesh": "a=3"}, "3"),
        ({"num_ranks": 2, "mesh": "a=x"}, "a=x"),
        ({"objective": "fame"}, "choose bytes or seconds"),
        ({"target": "toys_of_plan.py:none"}, "gives no Job"),
        ({"target": "toys_of_plan.py:nothing"}, "nothing"),
        ({"assignments": ("depth=3",)}, "depth"),
        ({"num_ranks": 2, "explained": "nobody"}, "nobody"),
        ({"num_ranks": 2, "out": Path("no/such/folder.json")}, "No such file"),
    ],
)
def test_bad_input(
    options: dict[str, Any],
    said: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(**options) == BAD_INPUT
    error = capsys.readouterr().err
    assert error.startswith("placet: ")
    assert said in error
    assert "Traceback" not in error


def test_the_plan_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "plan.json"
    assert asked(num_ranks=2, out=path, explained="0.weight") == 0
    assert Plan.load(path).mesh.num_ranks == 2
    assert "0.weight" in capsys.readouterr().out


@pytest.mark.prove
def test_a_large_models_file_is_small() -> None:
    example = REAL["GPT-2 XL"]
    with torch.device("meta"):
        model, batch = example.model_fn(), example.batch_fn()
    found = plan(
        model,
        batch,
        example.loss,
        mesh=Mesh("a=4, b=4"),
        objective="bytes",
        time_limit_seconds=60.0,
    )
    assert len(found.to_json().encode()) <= 100_000
