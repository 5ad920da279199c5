"""A run's report: one self-contained HTML page, and a trace beside it.

    events-rank*.jsonl -> read_run -> values -> template -> report.html
                                   -> trace  -> trace.json

The page needs no other file, no network and no script (a small one inside it adds the
read-outs of the curves). It can be made while the run is still going.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from placet.job import report_format as show
from placet.job import report_timeline as timeline
from placet.job.report_curves import Chart, Series
from placet.job.report_curves import draw as draw_chart
from placet.job.report_events import RankEvents, RunEvents, as_number, read_run
from placet.job.report_plan import read_plan
from placet.job.report_summary import (
    MAX_METRICS,
    clock,
    figures,
    problems,
    results,
    started,
    status,
)
from placet.job.report_tables import (
    accounts,
    boxing_rows,
    environment,
    throughput,
    total_row,
)
from placet.job.trace import write_trace

_TEMPLATES = Path(__file__).parent / "templates"


def render(run_dir: Path) -> Path:
    """Write RUN/report.html and RUN/trace.json; return the page's path.

    Raises:
        ValueError: `run_dir` is no run folder, or holds no readable events.
    """
    run_dir = Path(run_dir)
    run = read_run(run_dir)
    write_trace(run, run_dir / "trace.json")
    environment_ = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment_.get_template("report.html").render(_page(run))
    path = run_dir / "report.html"
    unfinished = run_dir / "report.html.part"
    unfinished.write_text(html, encoding="utf-8")
    unfinished.replace(path)
    return path


def _page(run: RunEvents) -> dict[str, Any]:
    """Everything the template names."""
    start = run.first.start
    rows = boxing_rows(run)
    drawn = timeline.draw(run)
    model = start.get("model") or {}
    parameters = as_number(model.get("parameters"))
    return {
        "show": show,
        "clock": clock,
        "name": run.name,
        "status": status(run),
        "started": started(run),
        "subtitle": [
            str(model["name"]) if model.get("name") else "",
            f"{show.count(parameters)} parameters" if parameters > 0 else "",
            f"{run.num_ranks} rank{'s' if run.num_ranks > 1 else ''}",
            started(run),
        ],
        "problems": problems(run, rows),
        "figures": figures(run),
        "results": results(run),
        "charts": charts(run.first),
        "evaluations": _evaluations(run.first),
        "plan": str(start.get("plan") or "").strip("\n"),
        "division": read_plan(start.get("division")),
        "boxings": rows,
        "boxing_total": total_row(rows) if len(rows) > 1 else None,
        "ranks": [r.rank for r in run.ranks],
        "closed": all(r.end.get("ledger") for r in run.ranks),
        "accounts": accounts(run),
        "timeline": drawn,
        "hidden": timeline.say_hidden(drawn.shares) if drawn else "",
        "saves": [
            (
                int(as_number(e.get("step"), 0)),
                as_number(e.get("t")),
                as_number(e.get("seconds")),
                str(e.get("path", "")),
            )
            for e in run.first.saves
        ],
        "environment": environment(run),
        "command": _command(start.get("argv") or []),
        "mesh": str(start.get("mesh", "")),
        "finite": math.isfinite,
    }


def _command(argv: Sequence[object]) -> str:
    """The command without the folder its program lies in."""
    words = [str(word) for word in argv]
    return " ".join([Path(words[0]).name, *words[1:]]) if words else ""


def _evaluations(rank: RankEvents) -> list[tuple[int, dict[str, float]]]:
    return [
        (
            int(as_number(e.get("step"), 0)),
            {str(k): as_number(v) for k, v in dict(e.get("metrics") or {}).items()},
        )
        for e in rank.evaluations
    ]


def charts(rank: RankEvents) -> list[Chart]:
    """The curves that this rank's events allow, the loss first."""
    steps = [s.step for s in rank.steps]
    evaluations = _evaluations(rank)
    at = [*steps, *(step for step, _ in evaluations)]
    if not at:
        return []
    draw = partial(draw_chart, x_range=(min(at), max(at)))

    def metric(name: str) -> Series:
        label = "validation" if name == "loss" else show.words(name)
        points = [(step, m[name]) for step, m in evaluations if name in m]
        at, values = [x for x, _ in points], [y for _, y in points]
        return Series(label, "b", at, values, dots=True)

    def field(label: str, style: str, name: str, *, smooth: bool = True) -> Series:
        values = [getattr(s, name) for s in rank.steps]
        return Series(label, style, steps, values, smooth)

    names = list(dict.fromkeys(name for _, m in evaluations for name in m))
    rates = dict(throughput(rank))
    found = [
        draw(
            "Loss",
            [field("training", "a", "loss")]
            + ([metric("loss")] if "loss" in names else []),
        ),
        draw(
            "Throughput",
            [Series("targets/s", "c", list(rates), list(rates.values()), smooth=True)],
            note="targets per second, all ranks together",
            from_zero=True,
            show=show.count,
        ),
        *(
            draw(f"Validation {show.words(name)}", [metric(name)])
            for name in names[:MAX_METRICS]
            if name != "loss" and len(evaluations) > 1
        ),
        draw(
            "Learning rate",
            [field("learning rate", "d", "lr", smooth=False)],
            note="of the first parameter group",
            from_zero=True,
        ),
        draw(
            "Gradient norm",
            [field("norm", "d", "grad_norm")],
            note="before clipping",
            from_zero=True,
        ),
    ]
    return [chart for chart in found if chart]
