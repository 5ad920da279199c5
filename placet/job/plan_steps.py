"""The divisions of a planned job's steps: the plan's own, and those of other batches.

    batch -> capture, normalise -> the plan's step?  -> its division, checked
                                -> another one       -> a division with the same homes

Batches of another shape (an epoch's last one), evaluations, or parameters frozen since,
are planned when they first come, with all homes as they are. Rank 0 plans and tells the
others, so that all do the same.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from torch import nn

from placet.errors import PlanError, RanksDiffer
from placet.job.setup import checksum
from placet.placement.layout import Layout, replicated
from placet.planner.build import build_problem
from placet.planner.classes import find_classes
from placet.planner.decide import decide
from placet.planner.plan import Plan
from placet.planner.plan_check import check_division, differences
from placet.planner.plan_edit import objective_of
from placet.planner.search import solve
from placet.program.capture import Captured, LossFunction, Precision, capture
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.run.planned_training import Divided
from placet.run.planned_training import Divides as DividesBatch
from placet.wire.interface import Wire

TRACING = Lock()
"""torch traces one step at a time; ranks that are threads take turns."""


@dataclass
class Divides:
    """Gives the division for a batch; see the module.

    Args:
        count: of batches planned for besides the plan's own.
        checks: of tensors that are none of the model's.
        not_captured: what cannot be measured by the plan.
    """

    model: nn.Module
    loss: LossFunction | None
    precision: Precision
    plan: Plan
    wire: Wire
    is_first: bool = True
    count: int = 0
    checks: int = 0
    not_captured: set[object] = field(default_factory=set)

    def __call__(self, batch: Any) -> Divided:
        """The division for a batch's step.

        Raises:
            PlanError: the plan is for another step than the first one, or was edited
                to what does not go with it.
        """
        loss, counts = watched(self.loss)
        with TRACING:
            captured = capture(self.model, batch, loss, precision=self.precision)
            graph = normalise(captured.graph, self.wire.num_ranks)
        self._check_foreign(captured)
        is_first, self.is_first = self.is_first, False
        if captured.fingerprint == self.plan.fingerprint:
            check_division(graph, self.plan.division)
            return Divided(captured, graph, self.plan.division, *counts[:1])
        if is_first:
            raise self._other_step(captured, graph)
        return Divided(captured, graph, self._plan_again(graph), *counts[:1])

    def measuring(self, asked: Callable[[nn.Module, Any], Any]) -> DividesBatch:
        """Gives the divisions of a function of model and batch, without backward."""

        def divide(batch: Any) -> Divided:
            with TRACING:
                captured = capture(
                    self.model, batch, asked, trains=False, precision=self.precision
                )
                graph = normalise(captured.graph, self.wire.num_ranks)
            self._check_foreign(captured)
            return Divided(captured, graph, self._plan_again(graph))

        return divide

    def _check_foreign(self, captured: Captured) -> None:
        """Tensors that are none of the model's must be the same on all ranks.

        Raises:
            RanksDiffer: they are not.
        """
        if not captured.foreign:
            return
        self.checks += 1
        mine = json.dumps({n: checksum(t) for n, t in captured.foreign.items()})
        told = self.wire.exchange(mine.encode(), key=f"foreign {self.checks}")
        for rank, theirs in enumerate(map(json.loads, told)):
            odd = [n for n, value in json.loads(told[0]).items() if theirs[n] != value]
            if odd:
                raise RanksDiffer(
                    f"rank {rank} differs from rank 0 in {odd[0]!r}, a tensor that the "
                    "step reads and that is no buffer: make it from the same numbers "
                    "on every rank"
                )

    def _other_step(self, captured: Captured, graph: Graph) -> PlanError:
        found = differences(self.plan, captured, graph, self.precision)
        return PlanError(
            f"the plan is for another step than this job's: {found}. Plan again, with "
            "the model, loss, batch size and precision that the job uses"
        )

    def _plan_again(self, graph: Graph) -> Division:
        """A division with the plan's homes: rank 0's, on every rank.

        Searches end by the clock, so ranks might find different ones.
        """
        self.count += 1
        states = {s.name: graph.tensors[s.tensor] for s in graph.states}

        def planned() -> Plan:
            return replace(self.plan, division=self._searched(graph), states=states)

        return from_first(planned, self.wire, key=f"plan {self.count}").division

    def _searched(self, graph: Graph) -> Division:
        plan = self.plan
        problem = find_classes(
            build_problem(
                graph,
                plan.mesh,
                objective_of(plan),
                storage=plan.storage,
                homes=known_homes(plan.division, graph),
            )
        )
        solution = solve(problem, time_limit_seconds=60.0)
        if solution.assignment is None:
            raise PlanError(
                "no plan for this batch keeps the parameters where they are"
            )
        return decide(problem, plan.mesh, solution.assignment)


def from_first(make: Callable[[], Plan], wire: Wire, *, key: str) -> Plan:
    """The plan that rank 0 makes, on every rank; or its error, on every rank.

    Raises:
        PlanError: on rank 0.
    """
    found = {}
    if wire.rank == 0:
        try:
            found = {"plan": make().to_json()}
        except PlanError as error:
            found = {"error": error.args[0]}
    told = json.loads(wire.exchange(json.dumps(found).encode(), key=key)[0])
    if "error" in told:
        raise PlanError(told["error"])
    return Plan.from_json(told["plan"])


def watched(loss: LossFunction | None) -> tuple[LossFunction | None, list[float]]:
    """A loss function, and the number of targets that it says as a plain number."""
    counts: list[float] = []

    def counted(model: nn.Module, batch: Any) -> Any:
        assert loss is not None
        found = loss(model, batch)
        is_pair = isinstance(found, tuple) and len(found) == 2
        if is_pair and isinstance(found[1], int | float):
            counts.append(float(found[1]))
        return found

    return (None if loss is None else counted), counts


def known_homes(division: Division, graph: Graph) -> dict[str, Layout]:
    """The homes of a graph's states; what the plan's step does not read is whole."""
    whole = replicated(division.mesh)
    return {s.name: division.homes.get(s.name, whole) for s in graph.states}
