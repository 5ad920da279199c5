"""Hooks on blocks: parameters are whole while their block computes, else parts."""

from typing import Any

import torch
from torch import Tensor, nn

from placet.job.job import Job
from placet.wire.interface import Wire
from testing.ranks import run_threads


def _trained(wire: Wire, zero: Any) -> list[Tensor]:
    """A Sequential's output is its last block's: both hooks are on one tensor."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    job = Job(model, optimizer=lambda p: torch.optim.SGD(p, 0.1), zero=zero, wire=wire)
    for _ in range(3):
        x = torch.randn(6, 5, generator=generator, dtype=torch.float64)
        job.backward(model(job.part(x)).square().mean())
        job.update()
    return [p.detach().clone() for p in job.training.parts.values()]


def test_blocks_last_block_output_is_the_models():
    alone = run_threads(1, _trained, 0)[0]
    ranks = run_threads(2, _trained, 3)
    joined = [torch.cat(parts) for parts in zip(*ranks, strict=True)]
    torch.testing.assert_close(joined, alone, rtol=1e-12, atol=1e-12)
