"""A plan edited by hand: other signatures, homes or boxings, priced again.

cost = sum over operators of their cost + sum over boxing steps of their price
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from placet.cost.objective import Objective, bytes_objective, seconds_objective
from placet.placement.layout import Layout, check_fits
from placet.placement.placement import Placement
from placet.planner.plan_data import Overlapped, PlanData
from placet.planner.plan_facts import facts_of
from placet.planner.plan_names import nearest
from placet.planner.storage import is_home
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.route import route, steps_of
from placet.program.rules.table import fits, signatures
from placet.program.signature import Operator, Signature, operator_of

P = TypeVar("P", bound=PlanData)


@dataclass(frozen=True)
class Cost:
    """What a division costs, in the objective's unit."""

    computing: float
    boxing: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.computing + self.boxing


def objective_of(plan: PlanData) -> Objective:
    """The prices that a plan was made by."""
    if plan.cluster is None or plan.machine is None:
        return bytes_objective(plan.mesh)
    return seconds_objective(plan.mesh, plan.cluster, plan.machine)


def cost_of(graph: Graph, division: Division, objective: Objective) -> Cost:
    """What a division costs."""
    computing = sum(
        objective.node_cost(
            operator_of(op, graph), division.signatures[op.name], division.mesh
        )
        for op in graph.ops
    )
    steps = steps_of(graph, division)
    return Cost(computing, sum(objective.step_price(step) for _, step in steps))


def edited(plan: P, graph: Graph, division: Division) -> P:
    """A plan with another division, priced again; pins of the search do not hold it."""
    objective = objective_of(plan)
    cost = cost_of(graph, division, objective).total
    facts = facts_of(graph, division, objective, plan.storage, plan.cluster)
    overlapped = plan.overlapped
    if overlapped is not None and facts.overlapped_seconds is not None:
        seconds = facts.overlapped_seconds
        bound = min(overlapped.bound_seconds, seconds)
        overlapped = Overlapped(seconds, bound)
    return replace(
        plan,
        division=division,
        cost=cost,
        bound=min(plan.bound, cost),
        solver="hand",
        memory_bytes=facts.memory_bytes,
        memory_at=facts.memory_at,
        memory_use=facts.memory_use,
        overlapped=overlapped,
        matmul_ratio=facts.matmul_ratio,
        work=facts.work,
        moves=facts.moves,
    )


def routed(plan: PlanData, graph: Graph) -> Division:
    """The division with the cheapest boxings for its homes and signatures."""
    return route(graph, plan.division, objective_of(plan).step_price)


def with_home(
    plan: PlanData, graph: Graph, name: str, home: Layout | Sequence[Placement]
) -> Division:
    """The division with a state stored elsewhere."""
    states = {state.name: state for state in graph.states}
    if name not in states:
        raise ValueError(f"{name!r} is no parameter or buffer; {nearest(name, states)}")
    layout = home if isinstance(home, Layout) else Layout(plan.mesh, home)
    state = states[name]
    check_fits(graph.tensors[state.tensor].shape, layout)
    if layout.mesh != plan.mesh or not is_home(layout):
        raise ValueError(
            f"{name!r} cannot live as {layout!r}: give B or S(dim), without a halo, "
            f"for each axis of {plan.mesh!r}"
        )
    division = plan.division
    changed = replace(division, homes={**division.homes, name: layout})
    touched = {state.tensor, *([state.new] if state.new else [])}
    return rerouted(graph, changed, objective_of(plan), touched)


def with_signature(
    plan: PlanData, graph: Graph, name: str, picked: Sequence[Signature]
) -> Division:
    """The division with other signatures of an operator."""
    ops = {op.name: op for op in graph.ops}
    if name not in ops:
        raise ValueError(f"{name!r} is no operator; {nearest(name, ops)}")
    operator = operator_of(ops[name], graph)
    found = tuple(picked)
    if not is_legal(plan.division, operator, found):
        options = "; ".join(map(repr, signatures(operator)))
        raise ValueError(
            f"{name!r}, {operator.text}, cannot be divided by {list(found)} on "
            f"{plan.mesh!r}; one for each axis of: {options}"
        )
    division = plan.division
    changed = replace(division, signatures={**division.signatures, name: found})
    touched = {*ops[name].inputs, *(n for n in ops[name].outputs if n)}
    return rerouted(graph, changed, objective_of(plan), touched)


def is_legal(
    division: Division, operator: Operator, picked: tuple[Signature, ...]
) -> bool:
    """Whether an operator may be divided so."""
    mesh, known = division.mesh, signatures(operator)
    if len(picked) != len(mesh.axes) or any(s not in known for s in picked):
        return False
    try:
        rows = zip(*(s.inputs for s in picked), strict=True)
        given = [Layout(mesh, row) for row in rows]
        rows = zip(*(s.outputs for s in picked), strict=True)
        made = [Layout(mesh, row) for row in rows]
        for meta, layout in zip(operator.inputs, given, strict=True):
            check_fits(meta.shape, layout)
    except ValueError:
        return False
    return fits(operator, tuple(given), tuple(made))


def rerouted(
    graph: Graph, division: Division, objective: Objective, touched: Collection[str]
) -> Division:
    """The division with the cheapest boxings of some tensors; others keep theirs."""
    fresh = route(graph, division, objective.step_price).boxings
    boxings = {n: s for n, s in division.boxings.items() if n not in touched}
    boxings |= {n: s for n, s in fresh.items() if n in touched}
    again = {n: s for n, s in division.again.items() if n not in touched}
    return replace(division, boxings=boxings, again=again)
