"""A job's plan at work: from a `Plan` to the running form of its program.

plan, model, first batch -> is it this plan's step?  -> placet.job.plan_steps
                         -> parts, optimizer         -> PlannedTraining
"""

import hashlib
import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from placet.errors import PlanError
from placet.job.data import Data
from placet.job.large import Deferred
from placet.job.loader import part_loader
from placet.job.plan_steps import TRACING, Divides, from_first
from placet.job.setup import (
    MakesOptimizer,
    Settings,
    build_training,
    check_same_everywhere,
    home,
    made,
)
from placet.job.split import moved
from placet.placement.cluster import Cluster
from placet.placement.placement import Broadcast
from placet.planner.plan import Plan
from placet.planner.planning import plan as make_plan
from placet.program.capture import LossFunction, Precision
from placet.run.optimizers import verdict
from placet.run.planned_start import start_planned
from placet.run.planned_training import PlannedTraining
from placet.run.training import Training
from placet.wire.interface import Wire

AUTO = "auto"
"""In the place of a plan: plan now."""


def placed(
    name: str,
    source: nn.Module | Deferred,
    loss: LossFunction | None,
    optimizer: Optimizer | MakesOptimizer | None,
    data: Data | None,
    settings: Settings,
    plan: Plan | Path | str | None,
    wire: Wire,
    *,
    compile: bool = False,
) -> Training | PlannedTraining:
    """Place a model on all ranks: as a plan says, or data-parallel without one."""
    if plan is None:
        return build_training(name, source, optimizer, settings, wire)
    return build_planned(
        name, source, loss, optimizer, data, settings, plan, wire, compile=compile
    )


def build_planned(
    name: str,
    source: nn.Module | Deferred,
    loss: LossFunction | None,
    optimizer: Optimizer | MakesOptimizer | None,
    data: Data | None,
    settings: Settings,
    plan: Plan | Path | str,
    wire: Wire,
    *,
    compile: bool = False,
) -> PlannedTraining:
    """Place a model on all ranks as a plan says.

    Raises:
        PlanError: the plan is for another number of ranks, model or batch.
        ValueError: settings or an optimizer that do not go with a plan.
        RanksDiffer: ranks were started with different parameters, code or settings.
    """
    model = _checked(source, loss, data, settings, plan)
    assert data is not None
    model.to(home())
    used = made(optimizer, model)
    batch = moved(first_batch(data, settings.seed), home())
    if plan == AUTO:
        check_same_everywhere(model, used, settings, wire)
        plan = _planned_now(model, loss, batch, used, settings, wire)
    elif not isinstance(plan, Plan):
        plan = Plan.load(plan)
    if plan.mesh.num_ranks != wire.num_ranks:
        raise PlanError(
            f"the plan is for {plan.mesh!r}, {plan.mesh.num_ranks} ranks; this job has "
            f"{wire.num_ranks}: start it with -n {plan.mesh.num_ranks}, or plan again"
        )
    _check_optimizer(used, plan)
    check_same_everywhere(model, used, replace(settings, plan=_mark(plan)), wire)
    precision = cast(Precision, settings.precision)
    divides = Divides(model, loss, precision, plan, wire)
    return start_planned(
        name,
        model,
        used,
        wire,
        divides,
        batch,
        clip_norm=settings.clip_norm,
        seed=settings.seed,
        compile=compile,
    )


def _mark(plan: Plan) -> str:
    """A hash of what a plan decides; how it was found may differ between ranks."""
    decided = replace(
        plan,
        cost=0.0,
        bound=0.0,
        is_complete=True,
        solver="",
        search_seconds={},
        meshes=(),
        notes=(),
        cluster=None,
        machine=None,
        overlapped=None,
        memory_bytes=0.0,
    )
    return hashlib.sha256(decided.to_json().encode()).hexdigest()[:16]


def _planned_now(
    model: nn.Module,
    loss: LossFunction | None,
    batch: Any,
    optimizer: Optimizer,
    settings: Settings,
    wire: Wire,
) -> Plan:
    """Rank 0's plan, on every rank."""

    def planned() -> Plan:
        with TRACING:
            return make_plan(
                model,
                batch,
                loss,
                cluster=wire.cluster or Cluster.here(wire.num_ranks),
                optimizer=optimizer,
                precision=cast(Precision, settings.precision),
            )

    return from_first(planned, wire, key="plan")


def first_batch(data: Data, seed: int = 0) -> Any:
    """The first global batch that training will see."""
    parts = part_loader(replace(data, num_workers=0), 0, 1, seed)
    return next(parts).micro_batches[0].batch


def _checked(
    source: nn.Module | Deferred,
    loss: LossFunction | None,
    data: Data | None,
    settings: Settings,
    plan: object,
) -> nn.Module:
    """The model, if the settings go with a plan.

    Raises:
        ValueError: they do not, or `plan` is none.
    """
    if not isinstance(plan, Plan | Path | str):
        raise ValueError(
            f"plan={plan!r}: give a plan (placet.plan makes one), its file's name, or "
            f"{AUTO!r} to plan now"
        )
    if not isinstance(source, nn.Module):
        raise ValueError(
            f"a {type(source).__name__} model does not go with plan= yet: give the "
            "module itself"
        )
    if loss is None or data is None:
        raise ValueError("a job with a plan needs loss= and data=, and trains by fit()")
    given = {
        "zero": (settings.zero, 0, "the plan says where parameters are"),
        "accumulate": (settings.accumulate, 1, "plan for a smaller batch instead"),
        "local_batch_norm": (
            settings.local_batch_norm,
            False,
            "a plan computes as one device does",
        ),
    }
    for name, (value, wanted, why) in given.items():
        if value != wanted:
            raise ValueError(f"{name}={value!r} does not go with plan=: {why}")
    if settings.precision == "fp16":
        raise ValueError(
            "precision='fp16' does not go with plan=: use 'bf16', and plan with it"
        )
    return source


def _check_optimizer(optimizer: Optimizer, plan: Plan) -> None:
    split = [
        name
        for name, layout in plan.division.homes.items()
        if not all(isinstance(p, Broadcast) for p in layout.placements)
    ]
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} evaluates the loss itself, several times a "
            "step, which does not go with plan=: use another optimizer"
        )
    found = verdict(optimizer)
    if split and not found.elementwise:
        raise ValueError(
            f"the plan stores {split[0]!r} and {len(split) - 1} others in parts, but "
            f"the optimizer needs whole tensors ({found.reason}): plan with "
            "pins=[placet.Pin('*', home=placet.B)], or use another optimizer"
        )


def share_of(training: Training | PlannedTraining) -> tuple[int, int]:
    """Whose rows a rank reads, as (rank, number of ranks): under a plan all of them."""
    if isinstance(training, PlannedTraining):
        return 0, 1
    return training.wire.rank, training.wire.num_ranks


def rescuing(training: Training | PlannedTraining) -> AbstractContextManager[None]:
    """Has a planned job's parameters whole after an error, where all ranks meet it."""
    if isinstance(training, PlannedTraining):
        return training.rescuing()
    return nullcontext()


def steps_of(training: PlannedTraining) -> Divides:
    """The divisions of a planned job's steps."""
    assert isinstance(training.divide, Divides)
    return training.divide


def plan_of(training: Training | PlannedTraining) -> Plan | None:
    """The plan that a job trains by; None without one."""
    return steps_of(training).plan if isinstance(training, PlannedTraining) else None
