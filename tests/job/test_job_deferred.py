"""A model that is built part by part starts to the same bits, and trains the same."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import AdamW

from placet.job.events import Event, StepDone
from placet.job.job import Job
from placet.job.large import Deferred
from placet.placement.layout import chunk
from placet.wire.interface import Wire
from placet.wire.twin import single
from testing.one_device import assert_same_as_one_device
from testing.ranks import run_ranks
from tests.job.models import Everything
from tests.job.trial import Trial, whole_state

Found = tuple[dict[str, Tensor], list[float], dict[str, Tensor]]


def built() -> nn.Module:
    """As a user writes it, with torch's own initialisation."""
    return Everything(0.1).double()


def train(wire: Wire, source: Any, zero: Any) -> Found:
    """What the rank stores at first, the losses, and the whole state at the end."""
    trial = Trial(built, lambda m: AdamW(m.parameters()))
    losses: list[float] = []

    def watch(job: Job, event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)

    job = Job(
        source,
        trial.made_loss(),
        lambda params: AdamW(params, lr=1e-2),
        trial.made_data(),
        zero=zero,
        callbacks=[watch],
        wire=wire,
    )
    start = {n: p.detach().clone() for n, p in job.training.parts.items()}
    job.fit(5)
    assert not job.training.ledger.mismatched
    return start, losses, whole_state(job)


def train_deferred(wire: Wire, zero: Any, weights: tuple[Path, ...] = ()) -> Found:
    torch.manual_seed(11)
    return train(wire, Deferred(built, weights), zero)


def parts_of(whole: dict[str, Tensor], rank: int, num_ranks: int) -> dict[str, Tensor]:
    """Each parameter's part on a rank, by torch.chunk's rule."""
    return {
        name: value[slice(*chunk(0, len(value), num_ranks, rank))]
        if value.dim()
        else value
        for name, value in whole.items()
    }


@pytest.mark.procs
def test_deferred_model_starts_and_trains_as_the_plain_one() -> None:
    torch.manual_seed(11)
    model = built()
    whole = copy.deepcopy(dict(model.named_parameters()))
    _, losses, end = train(single(), model, 0)
    for num_ranks, zero in ((1, 3), (2, 0), (3, 3)):
        for rank, found in enumerate(run_ranks(num_ranks, train_deferred, zero)):
            assert found is not None
            mine = parts_of(whole, rank, num_ranks) if zero else whole
            assert found[0].keys() == mine.keys()
            assert all(torch.equal(found[0][n], mine[n]) for n in mine)
            assert found[1] == pytest.approx(losses, rel=1e-9)
            assert_same_as_one_device(found[2], end)


@pytest.mark.procs
def test_deferred_model_takes_weights_from_files(tmp_path: Path) -> None:
    model = built()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.25)
    whole = copy.deepcopy(dict(model.named_parameters()))
    tensors = {n: p.detach().contiguous() for n, p in model.named_parameters()}
    save_file(tensors, tmp_path / "weights.safetensors")
    found = run_ranks(2, train_deferred, 3, (tmp_path / "weights.safetensors",))
    for rank, one in enumerate(found):
        assert one is not None
        mine = parts_of(whole, rank, 2)
        assert all(torch.equal(one[0][n], mine[n]) for n in mine)
