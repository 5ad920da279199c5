"""plan(): a plain module in, a near-optimal parallel plan out.

capture   one training step as a graph                  program/capture.py
normalise into operators that can be divided            program/normalise
for each factorisation of the ranks into a mesh:
    problem   choices of every operator, prices         planner/build.py
    solve     the cheapest plan, and a bound            planner/search.py
the cheapest of all; the bound is the least of all meshes'

With overlap no step is shorter than its computing. Moving gives no bound, as latencies
overlap and gradients share boxings:

    step >= sum over operators of the least computing                   -> _overlapped
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from placet.cost.machine import Machine
from placet.cost.objective import Seconds, Unit
from placet.errors import PlanError
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.beside import best_beside
from placet.planner.build import build_problem
from placet.planner.classes import find_classes
from placet.planner.fit import Fitted, fitted, leanest
from placet.planner.meshes import Meshes, search_meshes
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.planner.plan_data import MeshTried, Overlapped, relative_gap
from placet.planner.plan_facts import facts_of
from placet.planner.problem import Problem, Solution
from placet.planner.search import solve
from placet.planner.wanted import Wanted, wanted_of
from placet.program.capture import Captured, LossFunction, Precision, capture
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.program.program import bytes_text
from placet.program.rules.table import rule_of
from placet.program.signature import operator_of, target_name

MARGIN = 1.01
"""Over the least memory found, where it is named: searches end by the clock."""

Watch = Callable[[str], None]
"""Is told what the planner does now."""


def silent(_: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class PlannedFor:
    """A captured step that a plan is made for.

    Args:
        graph: normalised.
        seconds: that capturing took.
    """

    captured: Captured
    graph: Graph
    seconds: float


def plan(
    model: nn.Module,
    sample_batch: Any,
    loss: LossFunction | None = None,
    *,
    cluster: Cluster | None = None,
    memory: str | int | None = None,
    objective: Unit = "seconds",
    mesh: Mesh | None = None,
    max_axes: int = 2,
    pins: Sequence[Pin] = (),
    optimizer: str | Optimizer = "adam",
    precision: Precision = "fp32",
    machine: Machine | None = None,
    time_limit_seconds: float = 60.0,
    gap: float | None = None,
    watch: Watch | None = None,
) -> Plan:
    """A plan for training a model on a cluster.

        plan = placet.plan(model, batch, loss, cluster=placet.Cluster.here(4))
        job = placet.Job(model, loss, optimizer, data, plan=plan)

    Args:
        model: a plain module, on any device; nothing is computed.
        sample_batch: a global batch, with the shapes that training will have.
        loss: as for Job: (model, batch) -> the mean, or (mean, number of targets).
        cluster: hosts and links; this machine, one rank a core or GPU, if left out.
        memory: what each rank may hold, as "8GiB" or bytes; no limit if left out.
        objective: what the plan has least of: "seconds", or "bytes", which needs no
            machine. Of plans in seconds the one is taken that is shortest with boxings
            beside computing.
        mesh: the only one to be tried; all factorisations of the ranks if left out.
        max_axes: of the meshes that are tried.
        pins: placements that are decided or forbidden.
        optimizer: its name or itself; says how much state a parameter has.
        precision: "bf16" plans a step under autocast.
        machine: how fast a rank computes; measured for a moment if left out.
        time_limit_seconds: for the search on all meshes; then the best plan so far is
            returned, with its gap, and `is_complete` false.
        gap: the search ends when the plan is proven to cost at most so much more than
            the best one, as a part: 0.01; 0 searches the best. If left out, the best
            for small models, and half a percent for others. Costs are without overlap,
            and if it is given, so is the choice.
        watch: is told what the planner does.

    Raises:
        CaptureError: the step cannot be captured.
        PlanError: nothing fits the memory (says the least that would do), or the time
            was over before any plan was found.
        ValueError: a mesh of another size than the cluster; a pin without a choice; an
            option that is none.

    Source: AutoDDL (arXiv:2301.06813); differs in a bound, in activations counted as
    memory, in boxings shared by all readers, and in running on stock PyTorch.
    """
    tell = watch or silent
    wanted = wanted_of(
        cluster=cluster,
        memory=memory,
        objective=objective,
        mesh=mesh,
        max_axes=max_axes,
        pins=pins,
        optimizer=optimizer,
        precision=precision,
        machine=machine,
        time_limit_seconds=time_limit_seconds,
        gap=gap,
    )
    tell("capturing one step")
    return search(step_for(model, sample_batch, loss, wanted), wanted, tell)


def step_for(
    model: nn.Module, sample_batch: Any, loss: LossFunction | None, wanted: Wanted
) -> PlannedFor:
    """The step of a model, captured for a plan.

    Raises:
        CaptureError: it cannot be captured.
    """
    began = time.monotonic()
    captured = capture(model, sample_batch, loss, precision=wanted.precision)
    graph = normalise(captured.graph, wanted.num_ranks)
    return PlannedFor(captured, graph, time.monotonic() - began)


def graph_for(
    model: nn.Module,
    sample_batch: Any,
    loss: LossFunction | None = None,
    *,
    num_ranks: int,
    precision: Precision = "fp32",
) -> Graph:
    """The graph that a plan divides; what `Plan.explain` and its edits ask for."""
    captured = capture(model, sample_batch, loss, precision=precision)
    return normalise(captured.graph, num_ranks)


@dataclass
class _Builder:
    """Makes the problem of each mesh, and keeps what it took.

    Args:
        least_compute: of any plan on any mesh built so far, in the objective's unit.
    """

    graph: Graph
    wanted: Wanted
    tell: Watch
    seconds: float = 0.0
    least_compute: float = field(default=math.inf)

    def __call__(self, mesh: Mesh) -> Problem:
        """The problem of a mesh."""
        self.tell(f"{mesh!r}: pricing")
        began = time.monotonic()
        problem = build_problem(
            self.graph,
            mesh,
            self.wanted.objective(mesh),
            storage=self.wanted.storage,
            memory_bytes=self.wanted.memory_bytes,
            pins=self.wanted.pins,
        )
        least = sum(float(node.costs.min()) for node in problem.nodes)
        self.least_compute = min(self.least_compute, least)
        problem = find_classes(problem)
        self.seconds += time.monotonic() - began
        self.tell(f"{mesh!r}: searching")
        return problem


def search(step: PlannedFor, wanted: Wanted, tell: Watch = silent) -> Plan:
    """The cheapest plan over all meshes.

    Raises:
        PlanError: nothing fits the memory, or no plan was found in time.
    """
    graph = step.graph
    build = _Builder(graph, wanted, tell)
    began = time.monotonic()
    found = search_meshes(
        build,
        wanted.num_ranks,
        meshes=wanted.meshes,
        time_limit_seconds=wanted.time_limit_seconds,
        solver=partial(solve, gap=wanted.gap),
    )
    searched = time.monotonic() - began - build.seconds
    if found.best is None or found.problem is None:
        mesh, fit = _rescued(graph, wanted, found, build)
        bound = 0.0  # the row that nothing fits in may count more than a step holds
        prices = wanted.objective(mesh)
    else:
        bound = found.bound
        mesh, solution = found.solutions[found.best]
        ends = began + wanted.time_limit_seconds
        given = graph, mesh, found.problem
        prices = wanted.objective(mesh)
        if isinstance(prices, Seconds) and wanted.gap is None:
            tell("looking for what travels beside computing")
            solution = best_beside(*given, solution, prices, ends=ends)
        tell("counting memory")
        fit = fitted(
            *given, solution, wanted.storage, ends=ends, cluster=wanted.cluster
        )
        if wanted.memory_bytes is not None and fit.peak_bytes > wanted.memory_bytes:
            lean = leanest(*given, wanted.storage, cluster=wanted.cluster)
            if lean is not None and lean.peak_bytes < fit.peak_bytes:
                fit = lean
            if fit.peak_bytes > wanted.memory_bytes:
                raise _does_not_fit(graph, wanted, fit.peak_bytes)
    division, solution = fit.division, fit.solution
    facts = facts_of(graph, division, prices, wanted.storage, wanted.cluster)
    reached = relative_gap(solution.cost, bound) <= (wanted.gap or 0.0)
    return Plan(
        division,
        wanted.unit,
        solution.cost,
        bound,
        found.is_complete or reached,
        solution.solver,
        {"capture": step.seconds, "build": build.seconds, "solve": searched},
        wanted.memory_bytes,
        facts.memory_bytes,
        step.captured.fingerprint,
        {s.name: graph.tensors[s.tensor] for s in graph.states},
        step.captured.metas,
        wanted.storage,
        torch.__version__,
        wanted.precision,
        cluster=wanted.cluster,
        machine=wanted.machine,
        overlapped=_overlapped(facts.overlapped_seconds, build.least_compute),
        matmul_ratio=facts.matmul_ratio,
        memory_at=facts.memory_at,
        memory_use=facts.memory_use,
        meshes=tuple(_tried(*pair) for pair in found.solutions),
        notes=(*solution.notes, *replicated_notes(graph)),
        work=facts.work,
        moves=facts.moves,
    )


def _overlapped(seconds: float | None, least_compute: float) -> Overlapped | None:
    return None if seconds is None else Overlapped(seconds, least_compute)


def _tried(mesh: Mesh, solution: Solution) -> MeshTried:
    cost = None if solution.assignment is None else solution.cost
    return MeshTried(mesh, cost, solution.bound)


def replicated_notes(graph: Graph) -> tuple[str, ...]:
    """Operators for which no signature is known: every rank runs them whole."""
    found: dict[str, str] = {}
    for op in graph.ops:
        if op.inputs and rule_of(operator_of(op, graph))[1] == "replicated":
            where = ", ".join(filter(None, (op.module or "the model itself", op.line)))
            found.setdefault(target_name(op.target), where)
    return tuple(
        f"{target} in {where}: no signature is known, so every rank runs it whole"
        for target, where in found.items()
    )


def _rescued(
    graph: Graph, wanted: Wanted, found: Meshes, build: Callable[[Mesh], Problem]
) -> tuple[Mesh, Fitted]:
    """The plan that needs least, where the solver has found none that fits.

    Raises:
        PlanError: it does not fit either.
    """
    if wanted.memory_bytes is not None:
        needs = [(s.least_memory_bytes, mesh) for mesh, s in found.solutions]
        known = [(need, mesh) for need, mesh in needs if need is not None]
        if known:
            _, mesh = min(known, key=lambda pair: pair[0])
            problem = build(mesh)
            lean = leanest(graph, mesh, problem, wanted.storage, cluster=wanted.cluster)
            if lean is not None and lean.peak_bytes <= wanted.memory_bytes:
                return mesh, lean
            if lean is not None:
                raise _does_not_fit(graph, wanted, lean.peak_bytes)
    if not found.is_complete:
        raise PlanError(
            f"no plan was found in {wanted.time_limit_seconds:g} s: give the search "
            "more time (time_limit_seconds), or one mesh"
        )
    if wanted.memory_bytes is not None:
        raise _does_not_fit(graph, wanted, None)
    raise PlanError(
        f"no plan goes with all of the {len(wanted.pins)} pins: leave some out"
    )


def _does_not_fit(graph: Graph, wanted: Wanted, least_bytes: float | None) -> PlanError:
    """What would do, and what takes it."""
    least = (
        "" if least_bytes is None else f", {enough_text(MARGIN * least_bytes)} would do"
    )
    kept = 1 + wanted.storage.gradient + wanted.storage.optimizer
    trained = sum(
        graph.tensors[s.tensor].num_bytes * (kept if s.new and s.is_parameter else 1)
        for s in graph.states
    )
    share = bytes_text(trained / wanted.num_ranks)
    return PlanError(
        f"no plan for {wanted.num_ranks} ranks fits in "
        f"{bytes_text(wanted.memory_bytes or 0)} a rank{least} (parameters, gradients "
        f"and optimizer state take {share} of it, split over all ranks): give more "
        "memory, use more ranks, a smaller batch, or an optimizer with less state"
    )


def enough_text(num_bytes: float) -> str:
    """A size for people that is not below what it stands for: 1.3 MiB."""
    unit = 1
    while num_bytes >= 1024 * unit:
        unit *= 1024
    return bytes_text(math.ceil(num_bytes / unit * 10) / 10 * unit)
