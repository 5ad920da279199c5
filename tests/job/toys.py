"""Small recipes in a file of their own, for tests of the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NAME = "toys_of_tests"
FILE = f"{NAME}.py"

RECIPES = '''
"""Recipes for the tests of the command line."""
import os

import torch
from torch import nn

import placet.job.job as job_module
from placet.job.data import Data


def job(steps, width=3, **options):
    torch.manual_seed(0)
    model = nn.Linear(width, 1).double()
    rows = torch.randn(64, width, dtype=torch.float64)
    return job_module.Job(
        model,
        lambda model, x: model(x).square().mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Data(rows, 8),
        steps=steps,
        name="toy",
        **options,
    )


def toy(*, steps: int = 4, width: int = 3):
    """Trains a little."""
    return job(steps, width)


def endless():
    """Trains until it is stopped; says so on each step."""
    def tell(job, event):
        if type(event).__name__ == "StepDone":
            os.write(1, b"step\\n")
    return job(10**9, callbacks=[tell])


def none():
    """Gives no job."""


def one_rank_raises():
    if os.environ.get("RANK") == "1":
        raise KeyError("a problem of rank one")
    return job(10**9)


def too_many_ranks():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return job_module.Job(
        model,
        lambda model, x: model(x).square().mean(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Data(torch.randn(8, 3), 1),
        steps=1,
    )
'''


def toys_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recipes in a folder, which is the working folder meanwhile."""
    (folder / FILE).write_text(RECIPES)
    monkeypatch.chdir(folder)
    for name in ("RANK", "WORLD_SIZE", "PLACET_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop(NAME, None)  # the next test's file has the same name
