"""A plan for people: how good it is, what is where, and which bytes move.

rows of equal blocks are one: "h.{0-11}.attn" stands for twelve modules.
"""

from collections.abc import Iterator, Mapping, Sequence

from placet.placement.layout import Layout
from placet.planner.plan_data import PlanData
from placet.planner.plan_names import ranges
from placet.program.program import bytes_text

MAX_MESHES = 6
"""Other meshes that are shown."""

STOPPED = "by its time limit, before the gap that was asked for; give it more time"


def plan_text(plan: PlanData) -> str:
    """The plan, as `print` shows it."""
    parts = (_header, _memory, _homes, _work, _moves)
    return "\n".join(line for part in parts for line in part(plan))


def cost_text(cost: float, unit: str) -> str:
    """A cost for people: 4.0 MiB, or 1.2 ms."""
    if unit == "bytes":
        return bytes_text(round(cost))
    return f"{cost * 1e3:.3g} ms" if cost < 1 else f"{cost:.3g} s"


def _header(plan: PlanData) -> list[str]:
    batch = ", ".join(str(list(meta.shape)) for meta in plan.batch)
    what = "received per rank and step" if plan.unit == "bytes" else "a step"
    seconds = sum(plan.search_seconds.values())
    rows = [
        ("cost", f"{cost_text(plan.cost, plan.unit)} {what}"),
        ("bound", f"{cost_text(plan.bound, plan.unit)}, below which no plan is"),
        ("gap", gap_text(plan)),
        *_overlap(plan),
        *_matmuls(plan),
        ("memory", memory_text(plan)),
        ("found", f"by {plan.solver} in {seconds:.1f} s"),
        *(() if plan.is_complete else (("stopped", STOPPED),)),
        *_others(plan),
        *(("note", note) for note in plan.notes),
    ]
    title = f"plan on {plan.mesh!r} for a batch of {batch}, {plan.precision}"
    return [title, *(f"  {name:8} {text}" for name, text in rows)]


def gap_text(plan: PlanData) -> str:
    """How good a plan is, for people."""
    if plan.gap < 1e-7:
        return "0%: no plan is cheaper"
    if plan.gap > 1:
        times = f"{plan.cost / plan.bound:.1f} x" if plan.bound else "far above"
        return f"not known: the cost is {times} the bound"
    size = f"{plan.gap:.2%}" if plan.gap >= 5e-5 else "below 0.01%"
    return f"{size}: the best plan is cheaper by that at most"


def memory_text(plan: PlanData) -> str:
    """What the fullest rank holds, for people."""
    limit = plan.memory_limit_bytes
    allowed = "" if limit is None else f", of {bytes_text(limit)} allowed"
    return f"{bytes_text(plan.memory_bytes)} on the fullest rank at its peak{allowed}"


def _overlap(plan: PlanData) -> Iterator[tuple[str, str]]:
    found = plan.overlapped
    if found is not None:
        yield (
            "overlap",
            f"{cost_text(found.seconds, 'seconds')} a step with boxings beside "
            f"computing; gap with overlap {found.gap:.1%} (none is below "
            f"{cost_text(found.bound_seconds, 'seconds')})",
        )


def _matmuls(plan: PlanData) -> Iterator[tuple[str, str]]:
    if plan.matmul_ratio is not None:
        yield (
            "matmuls",
            f"{plan.matmul_ratio:.2f} x the least bytes of each matrix product alone",
        )


def _others(plan: PlanData) -> Iterator[tuple[str, str]]:
    """The other meshes, the cheapest first."""
    tried = [mesh for mesh in plan.meshes if mesh.mesh != plan.mesh]
    tried.sort(key=lambda t: t.bound if t.cost is None else t.cost)
    for mesh in tried[:MAX_MESHES]:
        cost = "no better" if mesh.cost is None else cost_text(mesh.cost, plan.unit)
        bound = cost_text(mesh.bound, plan.unit)
        yield "also", f"{mesh.mesh!r}: {cost} (bound {bound})"
    if len(tried) > MAX_MESHES:
        yield "also", f"{len(tried) - MAX_MESHES} further meshes, no better"


def _memory(plan: PlanData) -> list[str]:
    rows = [
        (use, bytes_text(size), f"{size / plan.memory_bytes:.0%}")
        for use, size in plan.memory_use.items()
    ]
    return _table(f"memory of the fullest rank at its peak, {plan.memory_at}", rows)


def _homes(plan: PlanData) -> list[str]:
    by_layout: dict[Layout, list[str]] = {}
    for name, layout in plan.division.homes.items():
        by_layout.setdefault(layout, []).append(name)
    rows = []
    for layout, names in by_layout.items():
        for pattern in ranges(names):
            rows.append((pattern, layout_text(layout)))
    return _table("parameters and buffers", sorted(rows))


def _work(plan: PlanData) -> list[str]:
    return _table("work", [(m, t, s) for m, t, s in plan.work])


def _moves(plan: PlanData) -> list[str]:
    rows = [
        (where, changed, f"{count} x", bytes_text(size))
        for where, changed, count, size in plan.moves
    ]
    return _table("boxings, by bytes that a rank receives in a step", rows)


def layout_text(layout: Layout) -> str:
    """A layout's placements, by axis: "S(0) @data, B @model"."""
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
