"""Why something is placed as it is: the alternatives, and what each would cost.

Each alternative changes one decision only and takes the cheapest boxings around it; all
others stay as they are.
"""

from collections.abc import Iterator
from itertools import islice, product

from placet.placement.layout import Layout, check_fits
from placet.placement.placement import B, Placement, Split
from placet.planner.plan_data import PlanData
from placet.planner.plan_edit import (
    cost_of,
    is_legal,
    objective_of,
    with_home,
    with_signature,
)
from placet.planner.plan_text import cost_text
from placet.program.division import Division
from placet.program.graph import Graph, Op
from placet.program.rules.table import signatures
from placet.program.signature import Signature, operator_of

MAX_ALTERNATIVES = 100
"""More are not priced."""


def explain(plan: PlanData, graph: Graph, name: str) -> str:
    """The alternatives for an operator, tensor or parameter, cheapest first.

    A module stands for its first operator.
    """
    states = {s.name: s for s in graph.states} | {s.tensor: s for s in graph.states}
    ops = {op.name: op for op in graph.ops}
    ops |= {n: op for op in graph.ops for n in op.outputs if n is not None}
    if name not in ops and name not in states:
        name = next((op.name for op in graph.ops if op.module == name), name)
    known = {*plan.division.homes, *plan.division.signatures}
    names = (*(s.name for s in graph.states), *(op.name for op in graph.ops))
    strange = [n for n in names if n not in known]
    if strange:
        raise ValueError(
            f"the plan knows no {strange[0]!r}: the graph is of another model, loss or "
            "number of ranks than the plan; make it by graph_for with the plan's own"
        )
    if name in states:
        state = states[name]
        shape = graph.tensors[state.tensor].shape
        now: object = plan.division.homes[state.name]
        title = f"{state.name}, {list(shape)}: stored as {now!r}"
        found = _homes(plan, graph, state.name, shape)
    elif name in ops:
        op = ops[name]
        now = plan.division.signatures[op.name]
        where = ", ".join(part for part in (op.module, op.line) if part)
        title = f"{op.name}, {operator_of(op, graph).text} in {where}: {_text(now)}"
        found = _signatures(plan, graph, op)
    else:
        raise ValueError(
            f"{name!r} is no parameter, operator or tensor of the step; parameters are "
            f"named as in model.state_dict(), such as {graph.states[0].name!r}"
        )
    objective = objective_of(plan)
    before = cost_of(graph, plan.division, objective).total
    rows = []
    for choice, division in islice(found, MAX_ALTERNATIVES):
        more = cost_of(graph, division, objective).total - before
        rows.append((more, _text(choice), choice == now))
    rows.sort(key=lambda row: (row[0], not row[2]))
    lines = [title]
    for more, text, is_now in rows:
        sign = "+" if more >= 0 else "-"
        size = f"{sign}{cost_text(abs(more), plan.unit)}"
        lines.append(f"  {size:>12}  {text}{'   <- the plan' if is_now else ''}")
    return "\n".join(lines)


def _homes(
    plan: PlanData, graph: Graph, name: str, shape: tuple[int, ...]
) -> Iterator[tuple[object, Division]]:
    options: list[Placement] = [
        B,
        *(Split(d) for d, size in enumerate(shape) if size > 1),
    ]
    for placements in product(options, repeat=len(plan.mesh.axes)):
        layout = Layout(plan.mesh, placements)
        try:
            check_fits(shape, layout)
        except ValueError:
            continue
        yield layout, with_home(plan, graph, name, layout)


def _signatures(
    plan: PlanData, graph: Graph, op: Op
) -> Iterator[tuple[object, Division]]:
    operator = operator_of(op, graph)
    for picked in product(signatures(operator), repeat=len(plan.mesh.axes)):
        if is_legal(plan.division, operator, picked):
            yield picked, with_signature(plan, graph, op.name, picked)


def _text(choice: object) -> str:
    if isinstance(choice, tuple) and all(isinstance(s, Signature) for s in choice):
        return "; ".join(map(repr, choice))
    return repr(choice)
