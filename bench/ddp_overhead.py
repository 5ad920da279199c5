"""Step time, memory and bytes of data-parallel training beside torch's DDP and FSDP2.

Two workers of one thread each, gloo on the loopback; the same model, rows and optimizer
on all sides, which step in turn in the same processes. Peak memory is taken in
processes of their own, one side each; bytes with four workers. `local_batch_norm` does
not matter: neither model has a BatchNorm.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bench.harness import (
    Measured,
    Options,
    Outcome,
    Side,
    measure,
    rows_of,
    run_bench,
)
from bench.ratios import Row, exact_row
from placet.job.job import Job
from placet.job.loader import BatchPart, MicroBatch, Position
from placet.placement.layout import chunk
from placet.program.blocks import find_blocks
from placet.program.data_parallel import ZeroLevel
from placet.wire.interface import Wire
from recipes.char_gpt import GPT
from recipes.char_gpt import loss as gpt_loss
from testing.ranks import run_ranks

T = TypeVar("T")

QUESTION = "What does a training step cost beside torch DDP and FSDP2 (2 workers)?"
MOST_OF_DDP, MOST_OF_FSDP, MOST_MEMORY = 1.03, 1.0, 1.05


@dataclass(frozen=True)
class Task:
    """A model, its loss, and one global batch."""

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Tensor], tuple[Tensor, int]]
    batch: Callable[[], Tensor]


def mlp() -> nn.Module:
    """25.2 million parameters in six square layers."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*layers)


def mlp_loss(model: nn.Module, rows: Tensor) -> tuple[Tensor, int]:
    """Mean squared error against the input itself."""
    return F.mse_loss(model(rows), rows), len(rows)


def windows() -> Tensor:
    """16 windows of 129 bytes."""
    return torch.randint(0, 256, (16, 129))


TASKS = (
    Task("char_gpt", lambda: GPT(width=128, depth=4, num_heads=4), gpt_loss, windows),
    Task("25M MLP", mlp, mlp_loss, lambda: torch.randn(64, 2048)),
)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The same on all sides."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def our_step(task: Task, wire: Wire, zero: ZeroLevel) -> Callable[[], object]:
    """A step of ours, on rows that are there already."""
    job, part = _our_job(task, wire, zero)
    return lambda: job.step(part)


def _our_job(task: Task, wire: Wire, zero: ZeroLevel) -> tuple[Job, BatchPart]:
    torch.manual_seed(0)
    model = task.model()
    job = Job(model, task.loss, optimizer_of(model), wire=wire, zero=zero)
    local, start, rows = _rows(task, wire)
    micro = MicroBatch(local, start, len(local))
    return job, BatchPart((micro,), rows, Position(), Position())


def ddp_step(
    task: Task, wire: Wire, group: dist.ProcessGroup | None = None
) -> Callable[[], object]:
    """A step of DDP's; its group is torch's default one when left out."""
    torch.manual_seed(0)
    model = DistributedDataParallel(task.model(), process_group=group)
    return _torch_step(task, wire, model)


def fsdp_step(task: Task, wire: Wire) -> Callable[[], object]:
    """A step of FSDP2's, sharded block by block as ours is."""
    torch.manual_seed(0)
    model = task.model()
    mesh = init_device_mesh("cpu", (wire.num_ranks,))
    for block in find_blocks(model):
        if block.name:
            fully_shard(model.get_submodule(block.name), mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _torch_step(task, wire, model)


def _torch_step(task: Task, wire: Wire, model: nn.Module) -> Callable[[], object]:
    optimizer = optimizer_of(model)
    local, _, _ = _rows(task, wire)

    def step() -> None:
        loss, _ = task.loss(model, local)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _rows(task: Task, wire: Wire) -> tuple[Tensor, int, int]:
    torch.manual_seed(1)
    batch = task.batch()
    start, stop = chunk(0, len(batch), wire.num_ranks, wire.rank)
    return batch[start:stop].clone(), start, len(batch)


def time_sides(wire: Wire, index: int, zero: ZeroLevel, options: Options) -> Measured:
    """On one rank: ours, the peer and the peer again, step by step in turn."""
    torch.set_num_threads(1)
    task = TASKS[index]
    peer_step = ddp_step if zero == 0 else fsdp_step
    agreed = [0]

    def agree(rounds: int) -> int:
        agreed[0] = rounds
        dist.broadcast_object_list(agreed, src=0)
        return agreed[0]

    return measure(
        Side("placet", our_step(task, wire, zero)),
        Side("torch", peer_step(task, wire)),
        Side("torch again", peer_step(task, wire)),
        num_pairs=options.num_pairs,
        budget_seconds=options.budget_seconds / (2 * len(TASKS)),
        num_warm_up=3,
        agree=agree,
    )


def peak_bytes(wire: Wire, index: int, side: str) -> int:
    """On one rank: how far a few steps raise the resident memory, at their peak."""
    torch.set_num_threads(1)
    task = TASKS[index]
    before = _status("VmRSS")
    step = {
        "ddp": lambda: ddp_step(task, wire),
        "fsdp": lambda: fsdp_step(task, wire),
        "zero0": lambda: our_step(task, wire, 0),
        "zero3": lambda: our_step(task, wire, 3),
    }[side]()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    for _ in range(5):
        step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def step_bytes(wire: Wire, index: int, zero: ZeroLevel) -> tuple[int, int, int]:
    """On one rank: bytes received in a step, predicted by the plan, and the bound."""
    job, part = _our_job(TASKS[index], wire, zero)
    job.step(part)
    done = job.step(part)
    bound = sum(job.program.boxing_plan(b).bound_bytes() for b in job.program.boxings())
    predicted = job.program.received_bytes(wire.rank)
    return done.received_bytes, predicted, bound // wire.num_ranks


def collect(options: Options) -> Outcome:
    """All rows: time, memory, bytes; a quick look has the small model only."""
    rows: list[Row] = []
    tasks = TASKS[:1] if options.quick else TASKS
    for index, task in enumerate(tasks):
        for zero, peer, most in ((0, "DDP", MOST_OF_DDP), (3, "FSDP2", MOST_OF_FSDP)):
            times = _found(2, time_sides, index, zero, options, timeout=1200)[0]
            rows += rows_of(times, f"{task.name} against {peer}", most=most)
    for index, task in enumerate(tasks):
        for ours, peer in (("zero0", "ddp"), ("zero3", "fsdp")):
            mine = max(_found(2, peak_bytes, index, ours))
            theirs = max(_found(2, peak_bytes, index, peer))
            name = f"{task.name} against {peer}: peak memory"
            rows.append(exact_row(name, mine, theirs, unit="bytes", most=MOST_MEMORY))
    for index, task in enumerate(tasks):
        for zero in (0, 3):
            got, predicted, bound = _found(4, step_bytes, index, zero)[0]
            name = f"{task.name}, zero={zero}, 4 workers: received against bound"
            rows.append(exact_row(name, got, bound, unit="bytes"))
            name = f"{task.name}, zero={zero}, 4 workers: received against predicted"
            rows.append(exact_row(name, got, predicted, unit="bytes", most=1.0))
    return Outcome(tuple(rows), ("One thread per worker; gloo on the loopback.",))


def _found(
    num_ranks: int, fn: Callable[..., T], *args: object, timeout: float = 120
) -> list[T]:
    """What each rank found; all of them live to tell."""
    found = run_ranks(num_ranks, fn, *args, timeout=timeout)
    return [cast(T, result) for result in found]


if __name__ == "__main__":
    sys.exit(run_bench("ddp_overhead", QUESTION, collect))
