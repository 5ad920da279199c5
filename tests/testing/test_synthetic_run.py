"""The synthetic run says what a job's own record says, field by field."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.events import Result
from placet.job.job import Job
from placet.settings import RUN_DIR
from placet.wire.twin import single
from testing.synthetic_run import write_run

NOT_IN_OLD_RUNS = {"waited"}


def fields(folder: Path) -> dict[str, set[str]]:
    """The names in each kind of event, and in those of its values that have names."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in folder.glob("events-rank*.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            found[event["kind"]] |= event.keys()
            for part in ("environment", "model", "ledger"):
                found[part] |= event.get(part, {}).keys()
            for boxing in event.get("boxings", []):
                found["planned"] |= boxing.keys()
    return found


def train() -> None:
    """A small job that tells all that a job can tell."""
    model = nn.Linear(3, 1)
    data = Data(TensorDataset(torch.ones(8, 3)), 4)
    job = Job(
        model,
        lambda model, batch: model(batch[0]).square().mean(),
        SGD(model.parameters(), lr=0.1),
        data,
        steps=3,
        validation=data,
        wire=single(),
    )
    job.fit()
    job.emit(Result("rows", (("ones", 1.0),)))


def test_synthetic_run_has_the_fields_of_a_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(RUN_DIR, str(tmp_path / "real"))
    train()
    real, synthetic = fields(tmp_path / "real"), fields(write_run(tmp_path / "made"))
    assert synthetic.keys() == real.keys()
    for kind, names in real.items():
        assert synthetic[kind] == names - NOT_IN_OLD_RUNS, kind
