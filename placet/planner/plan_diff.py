"""What one plan does otherwise than another, as text."""

from collections.abc import Mapping

from placet.placement.layout import Layout
from placet.planner.plan_data import PlanData
from placet.planner.plan_names import ranges
from placet.planner.plan_text import cost_text, layout_text
from placet.program.program import change

MAX_LINES = 40


def diff(ours: PlanData, theirs: PlanData) -> str:
    """Lines for the mesh, the cost, homes, operators and boxings; "" if all agree."""
    lines = []
    for what in ("mesh", "unit", "fingerprint", "precision"):
        a, b = getattr(ours, what), getattr(theirs, what)
        if a != b:
            lines.append(f"{what}: {a} -> {b}")
    if abs(ours.cost - theirs.cost) > 1e-9 * max(abs(ours.cost), abs(theirs.cost)):
        before, after = (cost_text(plan.cost, plan.unit) for plan in (ours, theirs))
        if before == after:
            before, after = f"{ours.cost:.6g}", f"{theirs.cost:.6g} {theirs.unit}"
        lines.append(f"cost: {before} -> {after}")
    for what in ("homes", "signatures", "boxings", "again"):
        a = getattr(ours.division, what)
        b = getattr(theirs.division, what)
        lines += _changes(what, a, b)
    return "\n".join(lines)


def _changes(
    what: str, ours: Mapping[str, object], theirs: Mapping[str, object]
) -> list[str]:
    """Names with the same change on one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys((*ours, *theirs)):
        pair = _text(ours.get(name)), _text(theirs.get(name))
        if pair[0] != pair[1]:
            groups.setdefault(pair, []).append(name)
    lines = []
    for (a, b), names in list(groups.items())[:MAX_LINES]:
        few = ranges(names)
        more = f" and {len(few) - 4} more" if len(few) > 4 else ""
        lines.append(f"{what}: {', '.join(few[:4])}{more}: {a} -> {b}")
    if len(groups) > MAX_LINES:
        lines.append(f"{what}: and {len(groups) - MAX_LINES} further changes")
    return lines


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, Layout):
        return layout_text(value)
    if isinstance(value, tuple):
        if len(value) == 2 and all(isinstance(item, Layout) for item in value):
            return change(*value)
        return "; ".join(map(_text, value)) or "none"
    return repr(value)
