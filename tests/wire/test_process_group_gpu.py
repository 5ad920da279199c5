"""cpu:placet,cuda:nccl: CUDA tensors go by NCCL, CPU tensors by the wire."""

import pytest
import torch
import torch.distributed as dist

import placet.wire.backend  # noqa: F401 (registers it)
from testing.ranks import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.procs,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def calls_on_both(_wire):
    assert [each.type for each in dist.group.WORLD._device_types] == ["cpu", "cuda"]
    for device in ("cpu", "cuda"):
        mine = torch.full((3,), 2.0, device=device)
        dist.all_reduce(mine)
        size = dist.get_world_size()
        whole = torch.empty(3 * size, device=device)
        dist.all_gather_single(whole, mine)
        assert whole.tolist() == [2.0 * size] * (3 * size)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
    net(torch.ones(2, 4, device="cuda")).sum().backward()
    dist.barrier()


def test_cuda_tensors_go_by_nccl():
    num_ranks = min(2, torch.cuda.device_count())
    run_ranks(num_ranks, calls_on_both, backend="cpu:placet,cuda:nccl")
