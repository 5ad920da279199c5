"""A job's plan at work: from a `Plan` to the running form of its program.

    plan + model + first batch -> capture, normalise -> is it this plan's model?
                               -> parts, optimizer   -> PlannedTraining

Batches of another shape (an epoch's last one), or parameters frozen since, are captured
and planned when they first come, with all homes as they are. Rank 0 plans and tells the
others, so that all do the same.
"""

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from placet.errors import PlanError
from placet.job.data import Data
from placet.job.large import Deferred
from placet.job.loader import part_loader
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
from placet.placement.layout import Layout
from placet.placement.placement import Broadcast
from placet.planner.build import build_problem
from placet.planner.classes import find_classes
from placet.planner.decide import decide
from placet.planner.plan import Plan
from placet.planner.plan_edit import objective_of
from placet.planner.planning import plan as make_plan
from placet.planner.search import solve
from placet.planner.storage import storage_of
from placet.program.capture import Captured, LossFunction, Precision, capture
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.run.optimizers import verdict
from placet.run.planned_training import Divided, PlannedTraining, start_planned
from placet.run.training import Training
from placet.wire.interface import Wire

AUTO = "auto"
"""In the place of a plan: plan now."""

_tracing = Lock()
"""torch traces one step at a time; ranks that are threads take turns."""


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
    model = _checked(source, loss, data, settings)
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
    divides = _Divides(model, loss, settings, plan, used, wire)
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
    found = b""
    if wire.rank == 0:
        with _tracing:
            planned = make_plan(
                model,
                batch,
                loss,
                cluster=wire.cluster or Cluster.here(wire.num_ranks),
                optimizer=optimizer,
                precision=cast(Precision, settings.precision),
            )
        found = planned.to_json().encode()
    told = wire.exchange(found, key="plan")[0]
    return Plan.from_json(told.decode())


def first_batch(data: Data, seed: int = 0) -> Any:
    """The first global batch that training will see."""
    parts = part_loader(replace(data, num_workers=0), 0, 1, seed)
    return next(parts).micro_batches[0].batch


class _Divides:
    """Gives the division for a batch: the plan's own, or a further one."""

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction | None,
        settings: Settings,
        plan: Plan,
        optimizer: Optimizer,
        wire: Wire,
    ) -> None:
        self.model = model
        self.loss = loss
        self.settings = settings
        self.plan = plan
        self.optimizer = optimizer
        self.wire = wire
        self.is_first = True
        self.count = 0

    def __call__(self, batch: Any) -> Divided:
        precision = cast(Precision, self.settings.precision)
        loss, counts = _watched(self.loss)
        with _tracing:
            captured = capture(self.model, batch, loss, precision=precision)
            graph = normalise(captured.graph, self.wire.num_ranks)
        is_first, self.is_first = self.is_first, False
        if captured.fingerprint == self.plan.fingerprint:
            check_names(self.plan.division, graph)
            return Divided(captured, graph, self.plan.division, *counts[:1])
        if is_first:
            raise _other_step(captured, self.plan)
        return Divided(captured, graph, self._plan_again(graph), *counts[:1])

    def _plan_again(self, graph: Graph) -> Division:
        """A division with the plan's homes: rank 0's, on every rank.

        Searches end by the clock, so ranks might find different ones.
        """
        found = b""
        if self.wire.rank == 0:
            again = replace(self.plan, division=self._searched(graph))
            found = again.to_json().encode()
        self.count += 1
        told = self.wire.exchange(found, key=f"plan {self.count}")[0]
        return Plan.from_json(told.decode()).division

    def _searched(self, graph: Graph) -> Division:
        plan = self.plan
        problem = find_classes(
            build_problem(
                graph,
                plan.mesh,
                objective_of(plan),
                storage=storage_of(self.optimizer),
                homes=known_homes(plan.division.homes, graph),
            )
        )
        solution = solve(problem, time_limit_seconds=60.0)
        if solution.assignment is None:
            raise PlanError(
                "no plan for this batch keeps the parameters where they are"
            )
        return decide(problem, plan.mesh, solution.assignment)


def _watched(loss: LossFunction | None) -> tuple[LossFunction | None, list[float]]:
    """A loss function, and the number of targets that it says as a plain number."""
    counts: list[float] = []

    def watched(model: nn.Module, batch: Any) -> Any:
        assert loss is not None
        found = loss(model, batch)
        is_pair = isinstance(found, tuple) and len(found) == 2
        if is_pair and isinstance(found[1], int | float):
            counts.append(float(found[1]))
        return found

    return (None if loss is None else watched), counts


def known_homes(homes: Mapping[str, Layout], graph: Graph) -> dict[str, Layout]:
    """The homes of a graph's states."""
    return {s.name: homes[s.name] for s in graph.states if s.name in homes}


def check_names(division: Division, graph: Graph) -> None:
    """A division must know just the operators of a graph.

    Raises:
        PlanError: it does not.
    """
    ops = {op.name for op in graph.ops}
    if ops != set(division.signatures):
        odd = sorted(ops ^ set(division.signatures))
        raise PlanError(
            f"the plan names other operators than the captured step: {odd[:4]}; it was "
            "made by another version of torch or placet: plan again"
        )


def _other_step(captured: Captured, plan: Plan) -> PlanError:
    if captured.metas != plan.batch:
        ours = ", ".join(f"{list(m.shape)} {m.dtype}" for m in captured.metas)
        theirs = ", ".join(f"{list(m.shape)} {m.dtype}" for m in plan.batch)
        return PlanError(
            f"the plan is for batches of {theirs}, the data gives {ours}; plan again "
            "with a batch of the data's size"
        )
    return PlanError(
        f"the plan is for another model or loss (its fingerprint is {plan.fingerprint},"
        f" this one's {captured.fingerprint}): plan again, with the model in the mode "
        "(train) and precision that the job uses"
    )


def _checked(
    source: nn.Module | Deferred,
    loss: LossFunction | None,
    data: Data | None,
    settings: Settings,
) -> nn.Module:
    """The model, if the settings go with a plan."""
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


def plan_of(training: Training | PlannedTraining) -> Plan | None:
    """The plan that a job trains by; None without one."""
    divide = getattr(training, "divide", None)
    return divide.plan if isinstance(divide, _Divides) else None
