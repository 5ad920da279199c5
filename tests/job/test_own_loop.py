"""A stranger's loop, adopted with four changed lines, trains on ranks as on one."""

import difflib
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placet.job.job import Job
from placet.wire.interface import Wire
from placet.wire.twin import single
from testing.one_device import assert_same_as_one_device
from testing.ranks import run_ranks, run_threads
from tests.job import own_loop_adopted, own_loop_plain
from tests.job.own_loop_plain import TinyGPT
from tests.job.trial import whole_state

_here = threading.local()


@pytest.fixture(autouse=True)
def in_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Double precision, and jobs on the wire of the rank that a thread is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(own_loop_adopted, "Job", job_here)
    yield
    torch.set_default_dtype(before)


def job_here(*args: Any, **options: Any) -> Job:
    _here.job = Job(*args, **options, wire=_here.wire, zero=_here.zero)
    return _here.job


def made_model(dropout: float) -> nn.Module:
    model = TinyGPT(dropout=dropout)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model


def adopted(wire: Wire, zero: int, dropout: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The adopted loop on one rank: validation losses and final parameters."""
    _here.wire, _here.zero = wire, zero
    losses = own_loop_adopted.train(made_model(dropout))
    assert not _here.job.training.ledger.mismatched
    return torch.tensor(losses), whole_state(_here.job)


def adopted_in_process(wire: Wire, zero: int) -> tuple[Tensor, dict[str, Tensor]]:
    own_loop_adopted.Job = job_here  # type: ignore[misc,assignment]
    return adopted(wire, zero, 0.2)


def test_own_loop_needs_four_changed_lines() -> None:
    plain, ours = (
        inspect.getsource(module.train).splitlines()
        for module in (own_loop_plain, own_loop_adopted)
    )
    changes = list(difflib.unified_diff(plain, ours, n=0, lineterm=""))[2:]
    written = [line for line in changes if line.startswith("+")]
    assert 0 < len(written) <= 4, "\n".join(changes)
    assert sum("job" in line for line in ours) == len(written)


def test_own_loop_is_the_plain_loop() -> None:
    model = made_model(0.0)
    losses = own_loop_plain.train(model)
    assert losses[-1] < losses[0] - 0.5
    plain = torch.tensor(losses), dict(model.named_parameters())
    plain[1]["head.weight"] = plain[1]["tokens.weight"]
    for num_ranks, zero in ((1, 0), (2, 1), (3, 3)):
        for found in run_threads(num_ranks, adopted, zero, 0.0):
            assert_same_as_one_device([found[0]], [plain[0]])
            for name, value in found[1].items():
                assert_same_as_one_device({name: value}, {name: plain[1][name]})


def test_own_loop_with_dropout_is_the_one_rank_loop() -> None:
    alone = run_threads(1, adopted, 0, 0.2)[0]
    for num_ranks, zero in ((3, 3), (4, 0)):
        for found in run_threads(num_ranks, adopted, zero, 0.2):
            assert_same_as_one_device(found[0], alone[0])
            assert_same_as_one_device(found[1], alone[1])


@pytest.mark.procs
def test_own_loop_in_processes() -> None:
    alone = run_threads(1, adopted, 0, 0.2)[0]
    for found in run_ranks(2, adopted_in_process, 3):
        assert found is not None
        assert_same_as_one_device(found[0], alone[0])
        assert_same_as_one_device(found[1], alone[1])


def test_own_loop_needs_part_then_backward_then_update() -> None:
    model = nn.Linear(2, 1)
    x = torch.ones(4, 2)
    job = Job(model, optimizer=torch.optim.SGD(model.parameters(), 0.1), accumulate=2)
    with pytest.raises(ValueError, match=r"job\.backward without job\.part"):
        job.backward(model(x).mean())
    job.backward(model(job.part(x)).mean())
    with pytest.raises(ValueError, match=r"after 1 job\.backward calls.*accumulate=2"):
        job.update()
    job.backward(model(job.part(x)).mean())
    job.update()
    with pytest.raises(ValueError, match=r"after 0 job\.backward calls"):
        job.update()
    with pytest.raises(ValueError, match=r"job\.backward without job\.part"):
        job.backward(model(x).mean())


def test_own_loop_refuses_batches_without_common_rows() -> None:
    model = nn.Linear(2, 1)
    job = Job(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"first dims \[3, 4\]"):
        job.part((torch.ones(4, 2), torch.ones(3)))
    with pytest.raises(ValueError, match=r"first dims \[\]"):
        job.part({"n": 3, "scale": torch.tensor(2.0)})


def test_own_loop_parts_keep_the_batchs_structure() -> None:
    batch = {"x": torch.arange(5), "more": [torch.arange(10).view(5, 2), "text"]}

    def part(wire: Wire) -> Any:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.no_grad():
            model.weight.fill_(1.0)
            model.bias.fill_(0.0)
        return Job(model, optimizer=optimizer, wire=wire).part(batch)

    parts = run_threads(3, part)
    assert [p["x"].tolist() for p in parts] == [[0, 1], [2, 3], [4]]
    assert [p["more"][0].shape for p in parts] == [(2, 2), (2, 2), (1, 2)]
    assert {p["more"][1] for p in parts} == {"text"}
    # Six ranks, five rows: the last gets a dummy.
    assert run_threads(6, part)[5]["x"].tolist() == [0]


def test_own_loop_refuses_an_optimizer_that_wants_closures() -> None:
    model = nn.Linear(2, 1)
    job = Job(model, optimizer=torch.optim.LBFGS(model.parameters()))
    job.backward(model(job.part(torch.ones(4, 2))).mean())
    with pytest.raises(ValueError, match=r"LBFGS.*job\.fit"):
        job.update()


def test_own_loop_optimizer_step_is_refused_outside_update():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Job(model, optimizer=optimizer, wire=single())
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match=r"call job\.update\(\) in its place"):
        optimizer.step()
