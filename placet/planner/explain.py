"""Why something is placed as it is: the alternatives, and what each would cost.

Each alternative changes one decision only and takes the cheapest boxings around it; all
others stay as they are.
"""

from collections.abc import Iterator
from itertools import islice, product

from placet.cost.flops import flops
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
from placet.planner.plan_names import nearest
from placet.planner.plan_text import cost_text, layout_text
from placet.program.division import Division
from placet.program.graph import Graph, Op
from placet.program.rules.table import signatures
from placet.program.signature import Signature, operator_of

MAX_ALTERNATIVES = 100
"""More are not priced."""


def subject_of(graph: Graph, name: str) -> str:
    """The state or operator that a name stands for.

    A module stands for the first of its operators that is heavy, or else its first.

    Args:
        name: of a parameter, buffer, operator, tensor or module.

    Raises:
        ValueError: nothing has that name; says which is the nearest.
    """
    states = {s.name: s.name for s in graph.states}
    states |= {s.tensor: s.name for s in graph.states}
    ops = {n: op.name for op in graph.ops for n in op.outputs if n is not None}
    named = {op.name: op.name for op in graph.ops}
    known = {**_modules(graph), **ops, **named, **states}
    if name not in known:
        raise ValueError(
            f"{name!r} is no parameter, module, operator or tensor of the step; "
            f"{nearest(name, (*states, *known))}"
        )
    return known[name]


def explain(plan: PlanData, graph: Graph, name: str) -> str:
    """The alternatives for what a name stands for, cheapest first; see `subject_of`."""
    subject = subject_of(graph, name)
    states = {s.name: s for s in graph.states}
    if subject in states:
        shape = graph.tensors[states[subject].tensor].shape
        now: object = plan.division.homes[subject]
        title = f"{subject}, {list(shape)}: stored as {_text(now)}"
        found = _homes(plan, graph, subject, shape)
    else:
        op = next(op for op in graph.ops if op.name == subject)
        now = plan.division.signatures[subject]
        where = ", ".join(part for part in (op.module, op.line) if part) or "the loss"
        title = f"{subject}, {operator_of(op, graph).text} in {where}: {_text(now)}"
        found = _signatures(plan, graph, op)
    objective = objective_of(plan)
    before = cost_of(graph, plan.division, objective).total
    rows = []
    others = ((c, division) for c, division in found if c != now)
    for choice, division in islice(others, MAX_ALTERNATIVES):
        more = cost_of(graph, division, objective).total - before
        rows.append((more, _text(choice), False))
    rows.append((0.0, _text(now), True))
    rows.sort(key=lambda row: (row[0], not row[2]))
    lines = [title]
    for more, text, is_now in rows:
        sign = "+" if more >= 0 else "-"
        size = f"{sign}{cost_text(abs(more), plan.unit)}"
        lines.append(f"  {size:>12}  {text}{'   <- the plan' if is_now else ''}")
    return "\n".join(lines)


def _modules(graph: Graph) -> dict[str, str]:
    """The operator that each module, and each that holds it, stands for."""
    heavy: dict[str, str] = {}
    first: dict[str, str] = {}
    for op in graph.ops:
        parts = op.module.split(".") if op.module else []
        is_heavy = op.phase == "forward" and flops(operator_of(op, graph)) > 0
        for count in range(1, len(parts) + 1):
            path = ".".join(parts[:count])
            first.setdefault(path, op.name)
            if is_heavy:
                heavy.setdefault(path, op.name)
    return {**first, **heavy}


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
    return layout_text(choice) if isinstance(choice, Layout) else repr(choice)
