"""Training steps under a limit that the kernel keeps: what does not fit fails.

    RLIMIT_DATA = what the process has before the job's tensors + the plan's + SLACK

A process has torch, the captured graph and the wire before; only tensors come after.
Each tensor of size is a mapping of its own, given back when it is freed, so what is
counted is what lives.
"""

import ctypes
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from placet.placement.layout import local_shape
from placet.planner.plan import Plan
from placet.program.capture import capture
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.run.planned import PlannedStep
from placet.wire.interface import Wire
from testing.models.example import Example

SLACK_BYTES = 32 << 20
"""For what is no tensor: code that is loaded when first run, pieces of the heap."""

_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 64 << 10


@dataclass(frozen=True)
class Limited:
    """A job's steps, and how much its tensors may take.

    Args:
        example_fn: gives the model; at a module's top level.
        plan: as JSON.
        limit_bytes: of the plan that must do; None for no limit.
    """

    example_fn: Callable[[], Example]
    plan: str
    limit_bytes: int | None
    num_steps: int = 2


def train_within(wire: Wire, job: Limited) -> float:
    """Train with Adam under the limit; the last loss.

    Raises:
        RuntimeError: the allocator's, where memory does not do.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    torch.manual_seed(0)
    plan, example = Plan.from_json(job.plan), job.example_fn()
    with torch.device("meta"):
        model, batch = example.model_fn(), example.batch_fn()
    captured = capture(model, batch, example.loss)
    graph = normalise(captured.graph, wire.num_ranks)
    refined = refine(graph, plan.division, name="limited", cluster=wire.cluster)
    step = PlannedStep(graph, plan.division, refined, wire)
    if job.limit_bytes is not None:
        limit = data_bytes() + job.limit_bytes + SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    parts = {}
    for state in graph.states:
        meta = graph.tensors[state.tensor]
        shape = local_shape(meta.shape, plan.division.homes[state.name], wire.rank)
        values = torch.empty(shape, dtype=meta.dtype).uniform_(-0.01, 0.01)
        parts[state.name] = nn.Parameter(values)
    tensors = captured.flatten(example.batch_fn())
    optimizer = torch.optim.Adam(parts.values())
    loss = torch.zeros(())
    for _ in range(job.num_steps):
        loss = _step(step, parts, tensors, optimizer)
    return float(loss)


def _step(
    step: PlannedStep,
    parts: dict[str, nn.Parameter],
    batch: list[Tensor],
    optimizer: torch.optim.Optimizer,
) -> Tensor:
    result = step({name: part.detach() for name, part in parts.items()}, batch)
    for name, part in parts.items():
        part.grad = result.news[name]
    optimizer.step()
    optimizer.zero_grad()
    assert result.loss is not None
    return result.loss


def data_bytes() -> int:
    """What RLIMIT_DATA counts of this process now."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmData:"))
    return int(line.split()[1]) << 10
