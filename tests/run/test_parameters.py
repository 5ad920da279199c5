"""Where parameters live: views at level 1 and 2, parts that come and go at level 3."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from placet.job.job import Job
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.run.parameters import cut_parts
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.models import Everything
from tests.job.trial import Trial


def made_job(wire: Wire, zero: Any) -> Job:
    trial = Trial(Everything, lambda m: SGD(m.parameters(), 0.1))
    model = trial.made_model()
    optimizer = trial.optimizer(model)
    return Job(
        model, trial.made_loss(), optimizer, trial.made_data(), zero=zero, wire=wire
    )


def test_parts_are_views_unless_stored_on_their_own() -> None:
    whole = {
        "w": nn.Parameter(torch.arange(10.0).view(5, 2)),
        "s": nn.Parameter(torch.tensor(2.0)),
    }
    layout = Layout(Mesh("data=4"), [S(0)])
    for own in (False, True):
        parts = [cut_parts(whole, layout, rank, own_storage=own) for rank in range(4)]
        assert [p["w"].shape[0] for p in parts] == [2, 2, 1, 0]
        assert torch.equal(torch.cat([p["w"] for p in parts]), whole["w"])
        assert all(p["s"] is whole["s"] for p in parts)
        shared = parts[0]["w"].untyped_storage().data_ptr()
        assert (shared == whole["w"].untyped_storage().data_ptr()) != own


@pytest.mark.parametrize("zero", [1, 2])
def test_updated_parts_come_back_whole(zero: int) -> None:
    def run(wire: Wire) -> dict[str, Tensor]:
        job = made_job(wire, zero)
        job.fit(2)
        named = dict(job.model.named_parameters())
        for name, part in job.training.parts.items():
            if part.numel():
                start = part.untyped_storage().data_ptr()
                assert start == named[name].untyped_storage().data_ptr()
        return {n: p.detach().clone() for n, p in named.items()}

    first, second = run_threads(2, run)
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_whole_parameters_are_there_only_while_their_block_computes() -> None:
    def run(wire: Wire) -> None:
        job = made_job(wire, 3)
        shapes = {n: job.program.tensors[n].shape for n in job.training.parts}
        seen = []

        def watch(module: nn.Module, args: Any) -> None:
            seen.append(module)
            for name, parameter in module.named_parameters():
                full = next(
                    n for n, p in job.model.named_parameters() if p is parameter
                )
                assert tuple(parameter.shape) == shapes[full], name

        for index in range(3):
            module = job.model.get_submodule(f"blocks.{index}")
            module.register_forward_pre_hook(watch)
        job.fit(2)
        assert len(seen) == 6
        for name, parameter in job.model.named_parameters():
            assert parameter.data_ptr() == job.training.parts[name].data_ptr()
        for stored in job.training.stored.values():
            assert not stored.is_whole
            assert all(
                not b.untyped_storage().nbytes() for b in stored.buffers.values()
            )

    run_threads(2, run)


def test_gradients_are_none_between_steps() -> None:
    def run(wire: Wire, zero: Any) -> None:
        job = made_job(wire, zero)
        job.fit(2)
        for parameter in (*job.model.parameters(), *job.training.parts.values()):
            assert parameter.grad is None

    for zero in range(4):
        run_threads(2, run, zero)
