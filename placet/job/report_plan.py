"""The report's section on a run's plan: figures, module tree, bytes by module.

    the record's plan -> read_plan -> PlanShown(figures, legend, rows, modules)

Modules that are alike are one row: h.{0-47}. The tree's leaves are parameters and
buffers; a colour stands for a placement.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placet.job.report_events import as_number
from placet.job.report_format import bytes_, percent, seconds
from placet.job.report_summary import Figure
from placet.planner.plan_names import ranges

STYLES = ("compute", "move", "update", "load", "save")
"""Colours of the layouts that split something, the largest first; then again."""

WHOLE = "idle"
"""The colour of what every rank has all of."""

MAX_MODULES = 12
"""More modules than these are one row together."""


@dataclass(frozen=True)
class Row:
    """A module, parameter or buffer, or several that are alike.

    Args:
        depth: in the tree.
        layout: of a parameter or buffer; "" for a module.
        style: the layout's colour.
        shares: of a module's bytes, as (style, percent) of each layout.
        whole_bytes, held_bytes: of the whole tensors, and what a rank stores of them.
    """

    depth: int
    name: str
    layout: str
    style: str
    shares: tuple[tuple[str, float], ...]
    whole_bytes: float
    held_bytes: float


@dataclass(frozen=True)
class PlanShown:
    """What the template shows.

    Args:
        legend: (layout, its colour), the largest first.
        modules: (module, bytes that a rank receives in a step, bar in percent).
    """

    figures: tuple[Figure, ...]
    legend: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    modules: tuple[tuple[str, str, float], ...]


@dataclass
class _Node:
    """A module or tensor of the tree; bytes are by layout: (of the whole, held)."""

    children: dict[str, "_Node"] = field(default_factory=dict)
    layout: str = ""
    sizes: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, path: Sequence[str], layout: str, whole: float, held: float) -> None:
        """Put a tensor into the tree, and its bytes into all that hold it."""
        first, second = self.sizes.get(layout, (0.0, 0.0))
        self.sizes[layout] = first + whole, second + held
        if path:
            child = self.children.setdefault(path[0], _Node())
            child.add(path[1:], layout, whole, held)
        else:
            self.layout = layout


def read_plan(record: Any) -> PlanShown | None:
    """The section's values; None for a run without a plan.

    Args:
        record: what `placet.job.plan_record.plan_event` wrote.
    """
    if not isinstance(record, Mapping):
        return None
    root = _tree(record.get("homes") or [])
    layouts = sorted(root.sizes, key=lambda layout: -root.sizes[layout][0])
    styles = _styles(layouts)
    return PlanShown(
        tuple(_figures(record, root)),
        tuple(styles.items()),
        tuple(_rows(root, styles, 0)),
        tuple(_modules(record.get("moves") or [])),
    )


def _tree(homes: Sequence[Sequence[Any]]) -> _Node:
    by_kind: dict[tuple[str, float, float], list[str]] = {}
    for name, layout, whole, held in homes:
        by_kind.setdefault((layout, as_number(whole), as_number(held)), []).append(name)
    found: dict[str, tuple[str, float, float]] = {}
    for (layout, whole, held), names in by_kind.items():
        for pattern in ranges(names):
            count = _count(pattern)
            found[pattern] = layout, count * whole, count * held
    order = {name: i for i, (name, *_) in enumerate(homes)}
    root = _Node()
    for pattern in sorted(found, key=lambda p: order.get(_first(p), 0)):
        root.add(pattern.split("."), *found[pattern])
    return root


def _spans(pattern: str) -> list[tuple[int, int]]:
    """The numbers that a pattern stands for, as (first, last); none for a name."""
    if "{" not in pattern:
        return []
    inside = pattern.split("{")[1].split("}")[0].split(",")
    pairs = [span.split("-") for span in inside]
    return [(int(pair[0]), int(pair[-1])) for pair in pairs]


def _count(pattern: str) -> int:
    return sum(last - first + 1 for first, last in _spans(pattern)) or 1


def _first(pattern: str) -> str:
    """The first of the names that a pattern stands for."""
    spans = _spans(pattern)
    if not spans:
        return pattern
    head, rest = pattern.split("{", 1)
    return f"{head}{spans[0][0]}{rest.split('}', 1)[1]}"


def _styles(layouts: Sequence[str]) -> dict[str, str]:
    split = [layout for layout in layouts if "S(" in layout]
    return {
        layout: STYLES[split.index(layout) % len(STYLES)] if layout in split else WHOLE
        for layout in layouts
    }


def _rows(node: _Node, styles: Mapping[str, str], depth: int) -> Iterator[Row]:
    for name, child in node.children.items():
        whole = sum(first for first, _ in child.sizes.values())
        held = sum(second for _, second in child.sizes.values())
        shares = tuple(
            (styles[layout], 100 * first / whole if whole else 0.0)
            for layout, (first, _) in child.sizes.items()
        )
        style = styles.get(child.layout, "")
        yield Row(depth, name, child.layout, style, shares, whole, held)
        yield from _rows(child, styles, depth + 1)


def _modules(moves: Sequence[Sequence[Any]]) -> Iterator[tuple[str, str, float]]:
    sizes: dict[str, float] = {}
    for module, _, _, size in moves:
        name = str(module) or "(loss)"
        sizes[name] = sizes.get(name, 0.0) + as_number(size, 0)
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])
    shown, rest = largest[:MAX_MODULES], largest[MAX_MODULES:]
    if rest:
        shown.append((f"{len(rest)} more modules", sum(size for _, size in rest)))
    top = max((size for _, size in shown), default=0.0) or 1.0
    for name, size in shown:
        yield name, bytes_(size), 100 * size / top


def _figures(record: Mapping[str, Any], root: _Node) -> Iterator[Figure]:
    in_bytes = record.get("unit") == "bytes"
    show = bytes_ if in_bytes else seconds
    gap = as_number(record.get("gap"))
    complete = "" if record.get("is_complete") else ", stopped by its time limit"
    took = seconds(as_number(record.get("seconds")))
    yield Figure("mesh", str(record.get("mesh", "")), "")
    yield Figure(
        "received per rank and step" if in_bytes else "predicted step",
        show(as_number(record.get("cost"))),
        f"no plan is below {show(as_number(record.get('bound')))}",
    )
    yield Figure(
        "gap to the bound",
        percent(gap),
        f"found by {record.get('solver', '')} in {took}{complete}",
    )
    overlapped = as_number(record.get("overlapped_seconds"))
    if overlapped == overlapped:
        yield Figure(
            "with boxings beside computing",
            seconds(overlapped),
            f"gap with overlap {percent(as_number(record.get('overlapped_gap')))}",
        )
    ratio = as_number(record.get("matmul_ratio"))
    if ratio == ratio:
        yield Figure(
            "bytes of matrix products",
            f"{ratio:.2f} x",
            "the least of each product alone",
        )
    limit = as_number(record.get("memory_limit_bytes"))
    whole = sum(first for first, _ in root.sizes.values())
    held = sum(second for _, second in root.sizes.values())
    yield Figure(
        "memory of the fullest rank",
        bytes_(as_number(record.get("memory_bytes"))),
        f"of {bytes_(limit)} allowed" if limit == limit else "predicted peak",
    )
    yield Figure(
        "parameters and buffers here", bytes_(held), f"of {bytes_(whole)} in all"
    )
