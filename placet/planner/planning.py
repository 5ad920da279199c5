"""plan(): a plain module in, a near-optimal parallel plan out.

capture   one training step as a graph                  program/capture.py
normalise into operators that can be divided            program/normalise
for each factorisation of the ranks into a mesh:
    problem   choices of every operator, prices         planner/build.py
    solve     the cheapest plan, and a bound            planner/search.py
the cheapest of all; the bound is the least of all meshes'
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import nn
from torch.optim import Optimizer

from placet.cost.machine import Machine, machine_here
from placet.cost.objective import (
    Objective,
    Unit,
    bytes_objective,
    seconds_objective,
)
from placet.errors import PlanError
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.build import build_problem, with_memory
from placet.planner.classes import find_classes
from placet.planner.fit import fitted
from placet.planner.meshes import Meshes, meshes_of, search_meshes
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.planner.plan_data import MeshTried
from placet.planner.plan_text import moves_of, work_of
from placet.planner.problem import Problem, Solution
from placet.planner.search import solve
from placet.planner.storage import Storage, storage_of
from placet.program.capture import Captured, LossFunction, Precision, capture
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.program.program import bytes_text
from placet.program.rules.table import rule_of
from placet.program.signature import operator_of, target_name

ROUNDING = 1e-3
"""How far above the least memory a plan is looked for."""
LEANEST_SECONDS = 20.0

Watch = Callable[[str], None]
"""Is told what the planner does now."""


@dataclass(frozen=True)
class Wanted:
    """What a plan is asked for, besides the model.

    Args:
        num_ranks: that the plan is for.
        cluster: their links; None where bytes alone count.
        machine: how fast they compute; only for seconds.
        memory_bytes: what each rank may hold.
        meshes: to be tried, in this order.
    """

    unit: Unit
    num_ranks: int
    cluster: Cluster | None
    machine: Machine | None
    memory_bytes: float | None
    meshes: tuple[Mesh, ...]
    pins: tuple[Pin, ...]
    storage: Storage
    time_limit_seconds: float

    def objective(self, mesh: Mesh) -> Objective:
        """The prices on a mesh."""
        if self.unit == "bytes":
            return bytes_objective(mesh)
        assert self.cluster is not None
        assert self.machine is not None
        return seconds_objective(mesh, self.cluster, self.machine)


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
            machine.
        mesh: the only one to be tried; all factorisations of the ranks if left out.
        max_axes: of the meshes that are tried.
        pins: placements that are decided or forbidden.
        optimizer: its name or itself; says how much state a parameter has.
        precision: "bf16" plans a step under autocast.
        machine: how fast a rank computes; measured for a moment if left out.
        time_limit_seconds: for the search on all meshes.
        watch: is told what the planner does.

    Raises:
        CaptureError: the step cannot be captured.
        PlanError: nothing fits the memory; says the least that would do.
        ValueError: a mesh of another size than the cluster; a pin without a choice; an
            option that is none.

    Source: AutoDDL (arXiv:2301.06813); differs in a bound, in activations counted as
    memory, in boxings shared by all readers, and in running on stock PyTorch.
    """
    _check_question(objective, mesh, max_axes, pins, precision, time_limit_seconds)
    began = time.monotonic()
    tell = watch or (lambda _: None)
    cluster = cluster or Cluster.here(None if mesh is None else mesh.num_ranks)
    num_ranks = cluster.num_ranks
    if mesh is not None and mesh.num_ranks != num_ranks:
        raise ValueError(
            f"{mesh!r} has {mesh.num_ranks} ranks, the cluster has {num_ranks}; give a "
            "mesh of as many"
        )
    tell("capturing one step")
    captured = capture(model, sample_batch, loss, precision=precision)
    graph = normalise(captured.graph, num_ranks)
    wanted = Wanted(
        objective,
        num_ranks,
        cluster,
        machine or machine_here() if objective == "seconds" else None,
        None if memory is None else parse_bytes(memory),
        (mesh,) if mesh is not None else meshes_of(num_ranks, max_axes=max_axes),
        tuple(pins),
        storage_of(optimizer),
        time_limit_seconds,
    )
    found = search(captured, graph, wanted, time.monotonic() - began, tell)
    return replace(found, precision=precision)


def _check_question(
    objective: object,
    mesh: object,
    max_axes: int,
    pins: object,
    precision: object,
    time_limit_seconds: float,
) -> None:
    """Options that mean nothing are refused before anything is traced.

    Raises:
        ValueError: says what was given, and what could be.
    """
    named = (("objective", objective, Unit), ("precision", precision, Precision))
    for name, value, kind in named:
        if value not in get_args(kind):
            known = " or ".join(map(repr, get_args(kind)))
            raise ValueError(f"{name}={value!r}: choose {known}")
    if not isinstance(mesh, Mesh | None):
        raise ValueError(f"mesh={mesh!r}: give a mesh, such as placet.Mesh('data=2')")
    if not isinstance(pins, Sequence) or not all(isinstance(p, Pin) for p in pins):
        raise ValueError(
            f"pins={pins!r}: give a list of pins, such as "
            "[placet.Pin('*.weight', home=placet.S(0))]"
        )
    if max_axes < 1:
        raise ValueError(f"max_axes={max_axes}: a mesh has at least 1 axis")
    if not time_limit_seconds > 0:
        raise ValueError(
            f"time_limit_seconds={time_limit_seconds}: give a time above 0"
        )


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


def search(
    captured: Captured,
    graph: Graph,
    wanted: Wanted,
    capture_seconds: float,
    tell: Watch,
) -> Plan:
    """The cheapest plan over all meshes.

    Raises:
        PlanError: nothing fits the memory.
    """
    times = {"capture": capture_seconds, "build": 0.0}

    def build(mesh: Mesh) -> Problem:
        tell(f"{mesh!r}: pricing")
        began = time.monotonic()
        problem = build_problem(
            graph,
            mesh,
            wanted.objective(mesh),
            storage=wanted.storage,
            memory_bytes=wanted.memory_bytes,
            pins=wanted.pins,
        )
        problem = find_classes(problem)
        times["build"] += time.monotonic() - began
        tell(f"{mesh!r}: searching")
        return problem

    began = time.monotonic()
    ends = began + wanted.time_limit_seconds
    found = search_meshes(
        build,
        wanted.num_ranks,
        meshes=wanted.meshes,
        time_limit_seconds=wanted.time_limit_seconds,
    )
    times["solve"] = time.monotonic() - began - times["build"]
    if found.best is None or found.problem is None:
        raise _does_not_fit(wanted, _leanest(graph, wanted, found, build))
    mesh, solution = found.solutions[found.best]
    tell("counting memory")
    fit = fitted(graph, mesh, found.problem, solution, wanted.storage, ends=ends)
    if wanted.memory_bytes is not None and fit.peak_bytes > wanted.memory_bytes:
        raise _does_not_fit(wanted, fit.peak_bytes)
    division, solution = fit.division, fit.solution
    return Plan(
        division,
        wanted.unit,
        solution.cost,
        found.bound,
        found.is_complete,
        solution.solver,
        times,
        wanted.memory_bytes,
        fit.peak_bytes,
        captured.fingerprint,
        captured.metas,
        cluster=wanted.cluster,
        meshes=tuple(_tried(*pair) for pair in found.solutions),
        notes=(*solution.notes, *replicated_notes(graph)),
        work=work_of(graph, division),
        moves=moves_of(graph, division),
    )


def _tried(mesh: Mesh, solution: Solution) -> MeshTried:
    cost = None if solution.assignment is None else solution.cost
    return MeshTried(mesh, cost, solution.bound)


def replicated_notes(graph: Graph) -> tuple[str, ...]:
    """Operators for which no signature is known: every rank runs them whole."""
    found: dict[str, str] = {}
    for op in graph.ops:
        if op.inputs and rule_of(operator_of(op, graph))[1] == "replicated":
            found.setdefault(target_name(op.target), op.module or "the model itself")
    return tuple(
        f"{target} in {module}: no signature is known, so every rank runs it whole"
        for target, module in found.items()
    )


def _leanest(
    graph: Graph, wanted: Wanted, found: Meshes, build: Callable[[Mesh], Problem]
) -> float | None:
    """The peak of the plan that needs least, where no plan fits; None if unknown."""
    needs = [(s.least_memory_bytes, mesh) for mesh, s in found.solutions]
    known = [(need, mesh) for need, mesh in needs if need is not None]
    if not known:
        return None
    need, mesh = min(known, key=lambda pair: pair[0])
    problem = with_memory(build(mesh), need * (1 + ROUNDING))
    solution = solve(problem, time_limit_seconds=LEANEST_SECONDS)
    if solution.assignment is None:
        return None
    measured = fitted(graph, mesh, problem, solution, wanted.storage, ends=0.0)
    return measured.peak_bytes


def _does_not_fit(wanted: Wanted, least_bytes: float | None) -> PlanError:
    least = "" if least_bytes is None else f", {bytes_text(least_bytes)} would do"
    return PlanError(
        f"no plan for {wanted.num_ranks} ranks fits in "
        f"{bytes_text(wanted.memory_bytes or 0)} a rank{least}: give more memory, "
        "use more ranks, a smaller batch, or an optimizer with less state"
    )


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str | int) -> float:
    """A size in bytes: 8589934592, "8GiB" or "500 MB".

    Raises:
        ValueError: neither a number nor a number with a unit.
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", str(text))
    if found is None or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise ValueError(f"memory={text!r}: write a size such as '8GiB' or '500MB'")
    return float(found[1]) * _UNITS[found[2].upper()]
