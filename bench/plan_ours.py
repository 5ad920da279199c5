"""Our side of bench/plan_vs_experts.py: a plan, executed as a job executes it.

    rank 0    plan(), over all meshes of the ranks  -> a division, told to all
    all       its program on the engine, the optimizer on parts, and the job's totals

Both objectives are there: by seconds, priced by links and machine as they were measured
with all ranks running, and by bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.plan_peers import LEARNING_RATE, Step
from placet.cost.machine import Machine
from placet.cost.objective import Unit
from placet.planner.plan import Plan
from placet.planner.planning import plan
from placet.program.capture import capture
from placet.program.normalise.normalise import normalise
from placet.run.planned_start import start_planned
from placet.run.planned_training import Divided
from placet.wire.interface import Wire
from testing.models.example import Example

SEARCH_SECONDS = 30.0


@dataclass(frozen=True)
class Planned:
    """What our side shows besides its times.

    Args:
        step: one training step on this rank.
        mesh: the plan's.
        cost, bound: in `unit`.
        seconds: that planning took.
    """

    step: Step
    mesh: str
    unit: Unit
    cost: float
    bound: float
    seconds: float


def planned(
    unit: Unit,
    example: Example,
    model: nn.Module,
    batch: Any,
    wire: Wire,
    machine: Machine,
) -> Planned:
    """Our step on this rank: found by rank 0, the same on all."""
    found: list[Plan | None] = [None]
    if wire.rank == 0:
        found[0] = plan(
            model,
            batch,
            example.loss,
            cluster=wire.cluster,
            objective=unit,
            machine=machine,
            optimizer="sgd",
            time_limit_seconds=SEARCH_SECONDS,
        )
    dist.broadcast_object_list(found, src=0)
    chosen = found[0]
    assert chosen is not None
    training = start_planned(
        f"ours {unit}",
        model,
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        wire,
        partial(_divided, example, model, chosen),
        batch,
    )
    count = iter(range(1, 10**9))

    def step() -> float:
        at = next(count)
        training.begin(at)
        return training.step(batch, 1).loss

    seconds = sum(chosen.search_seconds.values())
    return Planned(step, repr(chosen.mesh), unit, chosen.cost, chosen.bound, seconds)


def _divided(example: Example, model: nn.Module, chosen: Plan, batch: Any) -> Divided:
    captured = capture(model, batch, example.loss)
    graph = normalise(captured.graph, chosen.mesh.num_ranks)
    return Divided(captured, graph, chosen.division)


OURS: Mapping[str, Callable[[Example, nn.Module, Any, Wire, Machine], Planned]] = {
    "plan": partial(planned, "seconds"),
    "plan by bytes": partial(planned, "bytes"),
}
