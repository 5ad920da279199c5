"""Scripts for torch.distributed as users write them: nothing in them knows of placet.

Each runs on the default group and gives numbers that must not depend on the backend.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def model(num_blocks: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(num_blocks)))


def batch(step: int, part: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + part)
    return torch.randn(8, WIDTH, generator=generator)


def train(net: nn.Module, steps: int, part: int) -> Iterator[float]:
    """Each step's loss, the mean over all ranks."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        loss = net(batch(step, part)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        yield mean.item()


def data_parallel(steps: int) -> Iterator[float]:
    net = DistributedDataParallel(model(), bucket_cap_mb=0.005)
    yield from train(net, steps, dist.get_rank())
    # One bucket: with more, gloo's two threads wait for each other inside this hook.
    hooked = DistributedDataParallel(model())
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=1
    )
    hooked.register_comm_hook(state, power_sgd.powerSGD_hook)
    yield from train(hooked, steps, dist.get_rank())


def fully_sharded(steps: int) -> Iterator[float]:
    net = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    yield from train(net, steps, dist.get_rank())


def tensor_parallel(steps: int) -> Iterator[float]:
    net = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net:
        parallelize_module(
            block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )
    yield from train(net, steps, 0)


def two_axes(steps: int) -> Iterator[float]:
    """FSDP2 over one axis of a mesh, tensor parallel over the other."""
    net = model()
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in net:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    with jitter():
        yield from train(net, steps, mesh.get_local_rank("data"))


@contextmanager
def jitter() -> Iterator[None]:
    """Each rank is late by up to 2 ms, at random, before each module."""
    chance = random.Random(dist.get_rank())

    def be_late(*_: object) -> None:
        time.sleep(chance.random() * 2e-3)

    handle = nn.modules.module.register_module_forward_pre_hook(be_late)
    try:
        yield
    finally:
        handle.remove()


def placed_tensors(_steps: int) -> Iterator[float]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(35.0).reshape(7, 5)
    rows = dist.tensor.distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    yield columns.full_tensor().sum().item()
    assert torch.equal(columns.full_tensor(), whole)
    product = columns @ columns.redistribute(mesh, [Shard(1)]).t()
    yield product.full_tensor().sum().item()
    terms = DTensor.from_local(torch.full((4,), 2.0), mesh, [Partial()])
    yield from terms.redistribute(mesh, [Replicate()]).to_local().tolist()
    yield from terms.redistribute(mesh, [Shard(0)]).full_tensor().tolist()


def functional_calls(_steps: int) -> Iterator[float]:
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    mine = torch.arange(4.0) + rank
    yield functional.all_reduce(mine, "sum", group).sum().item()
    yield functional.all_reduce(mine, "avg", group).sum().item()
    yield functional.all_gather_tensor(mine, 0, group).sum().item()
    parts = torch.arange(4.0 * size).reshape(2 * size, 2)
    yield functional.reduce_scatter_tensor(parts, "sum", 0, group).sum().item()
    yield functional.all_to_all_single(parts, None, None, group).sum().item()
    sends = [1 + (rank + j) % 2 for j in range(size)]
    given = torch.arange(float(sum(sends)))
    yield functional.all_to_all_single(given, sends, sends, group).sum().item()
    yield functional.broadcast(mine, 0, group).sum().item()
    pair = functional.all_reduce_coalesced([mine, 2 * mine], "sum", group)
    yield from (each.sum().item() for each in pair)


def checkpoint(steps: int) -> Iterator[float]:
    where = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where, 0)
    net = model()
    for block in net:
        fully_shard(block)
    fully_shard(net)
    list(train(net, steps, dist.get_rank()))
    dcp.save({"model": net.state_dict()}, checkpoint_id=where[0])
    other = model()
    for block in other:
        fully_shard(block)
    fully_shard(other)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=where[0])
    other.load_state_dict(state["model"])
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.to_local(), theirs.to_local())
    yield other(batch(steps, 0)).square().mean().item()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(where[0])


def pipeline(steps: int) -> Iterator[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    part = model(size)[rank]
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda out, _: out.square().mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for step in range(steps):
        losses: list[Tensor] = []
        x = batch(step, 0)
        if rank == size - 1:
            schedule.step(*([x] if rank == 0 else []), target=x, losses=losses)
        else:
            schedule.step(*([x] if rank == 0 else []))
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.stack(losses).mean() if losses else torch.zeros(())
        dist.broadcast(mean, size - 1)
        yield mean.item()


SCRIPTS = (
    data_parallel,
    fully_sharded,
    tensor_parallel,
    two_axes,
    placed_tensors,
    functional_calls,
    checkpoint,
    pipeline,
)
