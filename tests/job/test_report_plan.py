"""The report's section on a run's plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from placet.job.report import render
from placet.job.report_plan import MAX_MODULES, read_plan
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, S
from placet.planner.plan_text import layout_text
from testing.synthetic_run import write_run
from tests.job.test_report import Page

SPLIT, WHOLE = "S(0) @a, B @b", "B @a, B @b"


def record(num_blocks: int = 3) -> dict[str, Any]:
    """A plan as a run records it: blocks of a split matrix and a whole bias."""
    homes: list[list[Any]] = [["embed.weight", WHOLE, 4000, 4000]]
    for i in range(num_blocks):
        homes.append([f"h.{i}.up.weight", SPLIT, 800, 400])
        homes.append([f"h.{i}.up.bias", WHOLE, 80, 80])
    return {
        "mesh": "Mesh('a=2, b=2')",
        "unit": "bytes",
        "cost": 2048.0,
        "bound": 1024.0,
        "gap": 1.0,
        "memory_bytes": 4096.0,
        "memory_limit_bytes": None,
        "is_complete": False,
        "overlapped_seconds": 0.25,
        "overlapped_gap": 0.25,
        "matmul_ratio": 1.5,
        "solver": "beam",
        "seconds": 2.0,
        "homes": homes,
        "moves": [["h.*.up", "P(sum) -> S(0)", 3, 1536.0], ["embed", "B", 1, 512.0]],
    }


def test_blocks_are_one_row_and_bytes_add_up() -> None:
    shown = read_plan(record())
    assert shown is not None
    rows = {row.name: row for row in shown.rows}
    assert [(r.depth, r.name) for r in shown.rows] == [
        (0, "embed"),
        (1, "weight"),
        (0, "h"),
        (1, "{0-2}"),
        (2, "up"),
        (3, "weight"),
        (3, "bias"),
    ]
    assert (rows["h"].whole_bytes, rows["h"].held_bytes) == (3 * 880, 3 * 480)
    assert rows["bias"].layout == WHOLE
    assert dict(rows["h"].shares) == {
        "compute": 100 * 800 / 880,
        "idle": 100 * 80 / 880,
    }
    assert dict(shown.legend) == {WHOLE: "idle", SPLIT: "compute"}


def test_bytes_by_module_are_the_largest_first() -> None:
    many = {**record(), "moves": [[f"m{i}", "", 1, 10.0 * i] for i in range(40)]}
    shown = read_plan(many)
    assert shown is not None
    name, size, width = shown.modules[0]
    assert (name, size) == ("m39", "390 B")
    assert width == pytest.approx(390 / shown_top(many) * 100)
    assert len(shown.modules) == MAX_MODULES + 1
    assert shown.modules[-1][0] == f"{40 - MAX_MODULES} more modules"


def shown_top(plan: dict[str, Any]) -> float:
    """The longest bar: the largest module's, or the rest's."""
    sizes: list[float] = sorted((move[3] for move in plan["moves"]), reverse=True)
    return max(sizes[0], sum(sizes[MAX_MODULES:]))


def test_a_run_without_a_plan_has_no_such_section(tmp_path: Path) -> None:
    assert read_plan(None) is None
    assert 'class="tree"' not in render(write_run(tmp_path / "run")).read_text()


def test_the_page_shows_the_plan(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    path = folder / "events-rank0.jsonl"
    first, *others = path.read_text().splitlines()
    start = {**json.loads(first), "division": record()}
    path.write_text("\n".join([json.dumps(start), *others]) + "\n")
    html = render(folder).read_text()
    page = Page(html)
    text = " ".join(page.all("section"))
    for said in (
        "stopped by its time limit",
        "250 ms",
        "25%",
        "1.50 x",
        "Mesh('a=2, b=2')",
        "2 KiB",
        "no plan is below 1 KiB",
        "{0-2}",
    ):
        assert said in text
    assert "Where parameters and buffers are" in page.all("caption")
    assert html.count('class="module"') == 4
    scrolling = html.split('class="scroll')[1:]
    assert all('tabindex="0"' in s[:120] and "aria-label" in s[:120] for s in scrolling)


def test_layout_text() -> None:
    assert layout_text(Layout(Mesh("a=2, b=2"), [S(0), B])) == SPLIT
