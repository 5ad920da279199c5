"""Between steps a planned job's model holds only what its plan stores on a rank."""

import pytest
import torch
from torch import Tensor

from placet.job.job import Job
from placet.run.events import NodeFired
from placet.run.planned_state import Wholes
from placet.run.planned_training import PlannedTraining
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.planned_trials import SPLIT, Mlp, adam, make_job, planned, sgd
from tests.job.trial import Trial


def wholes(job: Job) -> Wholes:
    """The model's own tensors of what the plan stores in parts."""
    assert isinstance(job.training, PlannedTraining)
    return job.training.wholes


def split_tensors(job: Job) -> dict[str, Tensor]:
    """The model's own tensors of what the plan stores in parts."""
    named = {**dict(job.model.named_parameters()), **dict(job.model.named_buffers())}
    return {item.name: named[item.name] for item in wholes(job).items}


def held_bytes(tensors: dict[str, Tensor]) -> int:
    """Bytes of memory behind tensors."""
    return sum(t.untyped_storage().nbytes() for t in tensors.values())


def memory(wire: Wire, trial: Trial) -> tuple[int, int, list[int], int]:
    """Bytes of whole split tensors: before, if whole, while steps ran, after."""
    job = make_job(wire, trial)
    tensors = split_tensors(job)
    seen: list[int] = []

    def look(fired: NodeFired) -> None:
        if fired.lane in ("compute", "update"):
            seen.append(held_bytes(tensors))

    job.training.observe(look)
    before = held_bytes(tensors)
    job.fit(6)
    assert all(bool(t.isfinite().all()) for t in tensors.values())
    whole = sum(t.numel() * t.itemsize for t in tensors.values())
    return before, whole, seen, held_bytes(tensors)


def test_a_step_holds_parts_only() -> None:
    trial = planned(Trial(Mlp, adam), "a=2", SPLIT)
    for before, whole, seen, after in run_threads(2, memory, trial):
        assert before == whole == after
        assert seen
        assert max(seen) <= 8 * 8 < whole  # a number for each of a few tensors


def test_freed_parameters_are_no_numbers() -> None:
    def look(wire: Wire) -> None:
        job = make_job(wire, planned_mlp)
        shapes = {n: t.shape for n, t in split_tensors(job).items()}
        wholes(job).free()
        for name, tensor in split_tensors(job).items():
            assert tensor.shape == shapes[name]
            assert bool(tensor.isnan().all())
            with torch.no_grad(), pytest.raises(RuntimeError, match="single memory"):
                tensor.add_(1.0)
        job.training.settle()
        for tensor in split_tensors(job).values():
            assert bool(tensor.isfinite().all())

    planned_mlp = planned(Trial(Mlp, sgd), "a=2", SPLIT)
    run_threads(2, look)


def settled(wire: Wire, trial: Trial) -> tuple[set[str], int, int]:
    """Names and bytes of the boxings by which parts become whole; bytes lacking."""
    job = make_job(wire, trial)
    model = job.model
    expected = {n: p.detach().clone() for n, p in model.named_parameters()}
    wholes(job).free()
    job.training.settle()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name])
        assert parameter.stride() == expected[name].stride()
    entries = [e for e in job.training.ledger.entries if e.boxing.startswith("settle")]
    whole = sum(t.numel() * t.itemsize for t in split_tensors(job).values())
    received = sum(e.received_bytes for e in entries)
    held = sum(item.part.numel() * item.part.itemsize for item in wholes(job).items)
    return {e.boxing for e in entries}, received, whole - held


def test_one_boxing_settles_all_of_a_home() -> None:
    trial = planned(Trial(Mlp, sgd), "a=2", SPLIT)
    for names, received, lacking in run_threads(2, settled, trial):
        assert len(names) == 1
        assert received == lacking > 0
