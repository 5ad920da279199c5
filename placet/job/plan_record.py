"""What a run's record keeps of its plan, for the report."""

from typing import Any

from torch import Tensor

from placet.job.plan_job import plan_of
from placet.planner.plan import Plan
from placet.planner.plan_text import layout_text
from placet.run.planned_training import PlannedTraining
from placet.run.training import Training


def plan_event(training: Training | PlannedTraining) -> dict[str, Any] | None:
    """The plan's figures, homes and boxings; None for a job without a plan.

    `homes` has a row for each parameter and buffer: name, layout, bytes of the whole,
    bytes that this rank stores. `moves` is as `placet.planner.plan_data.PlanData` says.
    """
    plan = plan_of(training)
    if plan is None or not isinstance(training, PlannedTraining):
        return None
    return {**_figures(plan), "homes": _homes(training), "moves": list(plan.moves)}


def _figures(plan: Plan) -> dict[str, Any]:
    return {
        "mesh": repr(plan.mesh),
        "unit": plan.unit,
        "cost": plan.cost,
        "bound": plan.bound,
        "gap": plan.gap,
        "memory_bytes": plan.memory_bytes,
        "memory_limit_bytes": plan.memory_limit_bytes,
        "overlapped_seconds": plan.overlapped and plan.overlapped.seconds,
        "overlapped_gap": plan.overlapped and plan.overlapped.gap,
        "matmul_ratio": plan.matmul_ratio,
        "is_complete": plan.is_complete,
        "solver": plan.solver,
        "seconds": sum(plan.search_seconds.values()),
    }


def _homes(training: PlannedTraining) -> list[tuple[str, str, int, int]]:
    mine: dict[str, Tensor] = {**training.parts, **training.buffers}
    rows = []
    for name, part in mine.items():
        shape, layout = training.home(name)
        size = part.element_size()
        for length in shape:
            size *= length
        rows.append(
            (name, layout_text(layout), size, part.numel() * part.element_size())
        )
    return rows
