"""A plan for people: how good it is, what is where, and which bytes move.

rows of equal blocks are one: "h.{0-11}.attn" stands for twelve modules.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from placet.boxing.path import mean_bytes
from placet.cost.flops import flops
from placet.placement.layout import Layout
from placet.planner.plan_data import PlanData
from placet.planner.plan_json import ranges
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.program import bytes_text, change
from placet.program.route import domains_of, uses_of
from placet.program.signature import operator_of, target_name

MAX_MOVES = 16
"""Rows of boxings that are kept and shown."""

Work = tuple[tuple[str, str, str], ...]
Moves = tuple[tuple[str, str, int, float], ...]


def plan_text(plan: PlanData) -> str:
    """The plan, as `print` shows it."""
    return "\n".join([*_header(plan), *_homes(plan), *_work(plan), *_moves(plan)])


def cost_text(cost: float, unit: str) -> str:
    """A cost for people: 4.0 MiB, or 1.2 ms."""
    if unit == "bytes":
        return bytes_text(round(cost))
    return f"{cost * 1e3:.3g} ms" if cost < 1 else f"{cost:.3g} s"


def work_of(graph: Graph, division: Division) -> Work:
    """The heavy operators of the forward, by module, and how they are divided."""
    groups: dict[tuple[str, str], list[str]] = {}
    for op in graph.ops:
        if op.phase == "forward" and flops(operator_of(op, graph)) > 0:
            signatures = _axes_text(division, op.name)
            key = target_name(op.target), signatures
            groups.setdefault(key, []).append(op.module or "(model)")
    rows = []
    for (target, signatures), modules in groups.items():
        for module in ranges(list(dict.fromkeys(modules))):
            rows.append((module, target, signatures))
    return tuple(rows)


def moves_of(graph: Graph, division: Division) -> Moves:
    """The boxings, alike ones together, with the mean bytes that a rank receives."""
    modules = {n: op.module for op in graph.ops for n in op.outputs if n is not None}
    for state in graph.states:
        modules[state.tensor] = state.name
        if state.new is not None:
            modules[state.new] = f"{state.name} (new)"
    domains = domains_of(graph, uses_of(graph, division), mean_bytes)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    names: dict[str, dict[str, None]] = {}
    for found in (division.boxings, division.again):
        for name, steps in found.items():
            domain = domains[graph.tensors[name]]
            stem = _stem(modules.get(name) or "(batch)")
            names.setdefault(stem, {})[modules.get(name) or "(batch)"] = None
            for src, dst in steps:
                price = float(domain.steps[domain.index(src), domain.index(dst)])
                if price >= 1:
                    counts[stem, change(src, dst)] += 1
                    sizes[stem, change(src, dst)] += price  # type: ignore[assignment]
    rows = [
        (", ".join(ranges(list(names[stem]))), changed, counts[stem, changed], size)
        for (stem, changed), size in sizes.most_common(MAX_MOVES)
    ]
    return tuple(rows)


def _stem(name: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def _axes_text(division: Division, name: str) -> str:
    pairs = zip(division.signatures[name], division.mesh.axes, strict=True)
    return ";  ".join(f"{signature!r} @{axis}" for signature, axis in pairs)


def _header(plan: PlanData) -> list[str]:
    batch = ", ".join(str(list(meta.shape)) for meta in plan.batch)
    what = "received per rank and step" if plan.unit == "bytes" else "a step"
    good = f"none is below {cost_text(plan.bound, plan.unit)}"
    if plan.gap <= 1:
        good = f"at most {plan.gap:.1%} too dear" if plan.gap else "no plan is cheaper"
    lines = [
        f"plan on {plan.mesh!r} for a batch of {batch}, {plan.precision}",
        f"  cost     {cost_text(plan.cost, plan.unit)} {what} ({good})",
        f"  memory   {bytes_text(plan.memory_bytes)} on the fullest rank"
        + (
            f" of {bytes_text(plan.memory_limit_bytes)} allowed"
            if plan.memory_limit_bytes
            else ""
        ),
        f"  found    by {plan.solver} in {sum(plan.search_seconds.values()):.1f} s"
        + ("" if plan.is_complete else ", ended by the time limit"),
    ]
    for tried in plan.meshes:
        if tried.mesh != plan.mesh:
            cost = "none" if tried.cost is None else cost_text(tried.cost, plan.unit)
            bound = cost_text(tried.bound, plan.unit)
            lines.append(f"  also     {tried.mesh!r}: {cost} (at least {bound})")
    return [*lines, *(f"  note     {note}" for note in plan.notes)]


def _homes(plan: PlanData) -> list[str]:
    by_layout: dict[Layout, list[str]] = {}
    for name, layout in plan.division.homes.items():
        by_layout.setdefault(layout, []).append(name)
    rows = []
    for layout, names in by_layout.items():
        for pattern in ranges(names):
            rows.append((pattern, _layout_text(layout)))
    return _table("parameters and buffers", sorted(rows))


def _work(plan: PlanData) -> list[str]:
    return _table("work", [(m, t, s) for m, t, s in plan.work])


def _moves(plan: PlanData) -> list[str]:
    rows = [
        (where, changed, f"{count} x", bytes_text(size))
        for where, changed, count, size in plan.moves
    ]
    return _table("boxings, by bytes that a rank receives in a step", rows)


def _layout_text(layout: Layout) -> str:
    pairs = zip(layout.placements, layout.mesh.axes, strict=True)
    return ", ".join(f"{p!r} @{axis}" for p, axis in pairs)


def _table(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths: Mapping[int, int] = {
        i: min(48, max(len(row[i]) for row in rows)) for i in range(len(rows[0]) - 1)
    }
    lines = ["", title]
    for row in rows:
        cells = [f"{cell:{widths.get(i, 0)}}" for i, cell in enumerate(row)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
