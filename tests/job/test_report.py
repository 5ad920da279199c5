"""The report of runs that ended well, ended badly, or have not ended."""

import json
import math
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from placet.job import report_format as show
from placet.job.report import charts, render
from placet.job.report_events import RunEvents, read_run
from placet.job.report_summary import figures, problems, results, status
from placet.job.report_tables import accounts, boxing_rows, environment, total_row
from testing.synthetic_run import boxings, step_bytes, write_run

VOID = {"meta", "link", "br", "img", "input", "hr"}
ADDRESSES = {"src", "href", "action", "data", "poster", "srcset", "xlink:href"}


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps texts by tag and all attributes."""

    def __init__(self, html: str) -> None:
        HTMLParser.__init__(self)
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        self.handle_data(" ")
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[str]:
        return [" ".join(text.split()) for text in self.texts.get(tag, [])]

    def values(self, key: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == key]


def rendered(folder: Path) -> tuple[Page, str]:
    html = render(folder).read_text(encoding="utf-8")
    return Page(html), html


def rewrite(
    path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Change or drop (None) each event of a rank's file."""
    events = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(e) + "\n" for e in events if e is not None))


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_report_page_is_whole_and_loads_nothing(tmp_path: Path, num_ranks: int) -> None:
    page, html = rendered(write_run(tmp_path / "gpt-1", num_ranks=num_ranks))
    for tag, key, value in page.attributes:
        if key in ADDRESSES:
            assert value.startswith("#") or value == "data:,", (tag, key, value)
    for word in ("http:", "https:", "//cdn", "@import", "url(", "{{", "{%"):
        assert word not in html
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for anchor in page.values("href") + page.values("aria-labelledby"):
        assert anchor == "data:," or anchor.removeprefix("#") in ids
    assert page.all("h1") == ["gpt-1"]
    assert "gpt-1" in page.all("title")[0]


def test_report_is_accessible(tmp_path: Path) -> None:
    page, html = rendered(write_run(tmp_path / "run"))
    assert ("html", "lang", "en") in page.attributes
    assert len(page.all("caption")) == html.count("<table") == 4
    assert all(page.all("caption"))
    assert (
        html.count('<svg role="img" aria-label="')
        == len(page.values("data-readout")) + 1
    )
    assert "prefers-color-scheme: dark" in html
    # whatever scrolls sideways can be reached with the keyboard and has a name
    scrolling = html.split('class="scroll')[1:]
    assert all('tabindex="0"' in s[:120] and "aria-label" in s[:120] for s in scrolling)
    assert page.all("h2")[0] == "Key figures"


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_report_colours_have_contrast(tmp_path: Path, theme: int) -> None:
    html = render(write_run(tmp_path / "run")).read_text()
    block = html.split(":root {")[1 + theme].split("}")[0]
    colours = dict(
        pair.strip().removeprefix("--").split(": ")
        for pair in block.split(";")
        if pair.strip().startswith("--")
    )
    pairs = [
        (ink, page)
        for ink in ("ink", "soft", "accent", "good", "bad")
        for page in ("page", "card")
    ]
    lanes = ("compute", "move", "update", "load", "save")
    pairs += [("warn", "warn-page"), *((f"{lane}-ink", lane) for lane in lanes)]
    for ink, page in pairs:
        low, high = sorted((luminance(colours[ink]), luminance(colours[page])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, page)
    for line in ("a", "b", "c", "d", *(f"{lane}-edge" for lane in lanes)):
        low, high = sorted((luminance(colours[line]), luminance(colours["card"])))
        assert (high + 0.05) / (low + 0.05) >= 2.5, line


def test_report_shows_key_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=2, num_steps=120)
    run = read_run(folder)
    found = {figure.label: figure for figure in figures(run)}
    last = run.first.steps[-1]
    assert found["Final training loss"].value == show.number(last.loss)
    metrics = run.first.evaluations[-1]["metrics"]
    assert found["Validation bits per byte"].value == show.number(
        metrics["bits_per_byte"]
    )
    assert found["Bytes per step"].value == show.bytes_(step_bytes(2)) == "3.53 MiB"
    assert (
        found["Wall time"].value == show.seconds(run.first.end["seconds"]) == "9.32 s"
    )
    assert (found["Ranks"].value, found["Ranks"].note) == ("2", "Mesh('data=2')")
    times = sorted(s.seconds for s in run.first.steps[12:])
    rate = 8192 / (sum(times[53:55]) / 2)
    assert found["Throughput"].value == f"{show.count(rate)}/s"
    page, _ = rendered(folder)
    shown = " ".join(page.all("dl"))
    assert all(figure.value in shown for figure in found.values())
    assert status(run).name == "done"
    assert problems(run, boxing_rows(run)) == []


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_report_boxings_table(tmp_path: Path, num_ranks: int) -> None:
    folder = write_run(tmp_path / "run", num_ranks=num_ranks, recorded=(3, 4, 5))
    run = read_run(folder)
    rows = {row.name: row for row in boxing_rows(run)}
    planned = boxings(num_ranks)
    assert list(rows) == [boxing["name"] for boxing in planned]
    for boxing in planned:
        row = rows[boxing["name"]]
        assert row.change == f"{boxing['src']} -> {boxing['dst']} @data"
        assert row.payload_bytes == boxing["payload_bytes"]
        assert row.sent_bytes == row.received_bytes == boxing["sent_bytes"]
        assert (row.bound_bytes, row.ratio) == (boxing["bound_bytes"], 1.0)
        assert (row.moves, row.wrong_moves) == (3 * num_ranks, 0)
        moves = [m for r in run.ranks for m in r.moves if m.name == row.name]
        assert row.seconds == pytest.approx(sum(m.seconds for m in moves) / len(moves))
        steps = [s.seconds for r in run.ranks for s in r.steps if s.step in (3, 4, 5)]
        assert row.share == pytest.approx(row.seconds / (sum(steps) / len(steps)))
    total = total_row(list(rows.values()))
    assert total.sent_bytes == step_bytes(num_ranks)
    page, html = rendered(folder)
    cells = page.all("tr")
    assert any("grads.blocks.0 P(sum) → S(0) @data 12" in row for row in cells)
    assert html.count(f"✓ {3 * num_ranks} of {3 * num_ranks}") == len(planned)


def test_report_boxing_fired_twice_a_step_scales_its_bound(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", recorded=(3,))
    for rank in range(2):
        path = folder / f"events-rank{rank}.jsonl"
        lines = path.read_text().splitlines()
        again = [
            line for line in lines if '"params.head"' in line and '"boxing"' in line
        ]
        assert len(again) == 1
        path.write_text("\n".join(lines + again))
    row = next(r for r in boxing_rows(read_run(folder)) if r.name == "params.head")
    assert row.received_bytes == row.bound_bytes == 2 * 4 * 65_792 // 2
    assert row.ratio == 1.0


def test_report_boxing_above_its_bound(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")

    def halve(event: dict[str, Any]) -> dict[str, Any]:
        for boxing in event.get("boxings", []):
            boxing["bound_bytes"] //= 2
            if boxing["name"] == "params.head":
                boxing["bound_bytes"] = 0
        return event

    for rank in range(2):
        rewrite(folder / f"events-rank{rank}.jsonl", halve)
    rows = {row.name: row for row in boxing_rows(read_run(folder))}
    assert rows["grads.head"].ratio == 2.0
    assert rows["params.head"].ratio == math.inf
    assert "2.00" in rendered(folder)[0].all("td")


def test_report_boxing_that_moved_other_bytes_is_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")

    def grow(event: dict[str, Any]) -> dict[str, Any]:
        if event["kind"] == "boxing" and event["name"] == "grads.embed":
            event["received_bytes"] += 1
        return event

    rewrite(folder / "events-rank1.jsonl", grow)
    run = read_run(folder)
    (problem,) = problems(run, boxing_rows(run))
    assert problem == "3 moves carried other bytes than predicted: grads.embed."
    assert "✗ 3 of 6 differ" in rendered(folder)[0].all("td")


def test_report_ledger_accounts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=2, num_steps=50)
    found = {account.name: account for account in accounts(read_run(folder))}
    assert list(found) == ["boxings", "control", "foreign", "files"]
    assert found["boxings"].by_rank == (100 * step_bytes(2),) * 2
    assert found["control"].total == 2 * 18_431
    page, html = rendered(folder)
    assert f'title="{100 * step_bytes(2):,} bytes"' in html
    assert "books are not closed" not in html
    assert any(row.startswith("foreign others' code") for row in page.all("tr"))


def test_report_results_as_bars_and_sample(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (result,) = results(read_run(folder))
    assert result.rows == (
        ("placet", "1.91", 65.19),
        ("order-2 bytes", "2.93", 100.0),
        ("lzma", "2.38", 81.23),
    )
    page, html = rendered(folder)
    assert "if line &lt;&gt;" in html  # the sample is text, never markup
    assert any("def read_lines" in text for text in page.all("pre"))


def test_report_escapes_what_the_run_wrote(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a<script>b")

    def poison(event: dict[str, Any]) -> dict[str, Any]:
        evil = "</pre><script>alert(1)</script>"
        event.update({k: evil for k in ("plan", "title", "text") if k in event})
        if event["kind"] in ("node", "boxing"):
            event["name"] = evil
        if "metrics" in event:
            event["metrics"] = {"</div>'\"": 1.0, "loss": 1.0}
        return event

    rewrite(folder / "events-rank0.jsonl", poison)
    page, html = rendered(folder)
    assert html.count("<script>") == 1
    assert page.all("h1") == ["a<script>b"]


def test_report_of_a_run_still_going(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=2, num_steps=40, status=None)
    path = folder / "events-rank1.jsonl"
    path.write_text(path.read_text()[:-25])  # the last line is torn
    run = read_run(folder)
    assert status(run).name == "unfinished"
    assert "still going, or killed" in status(run).note
    page, html = rendered(folder)
    assert "1 line of events-rank1.jsonl cannot be read" in html
    assert "books are not closed" in html
    assert "Results" not in page.all("h2")
    moved = show.bytes_(2 * 40 * step_bytes(2))
    assert moved in page.all("td")


def test_report_of_a_failed_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=4, num_steps=80, status="failed")
    (folder / "events-rank2.jsonl").unlink()

    def fail(event: dict[str, Any]) -> dict[str, Any] | None:
        if event["kind"] == "step" and event["step"] > 60:
            event["loss"] = math.nan
        if event["kind"] == "end":
            event["error"] = "the loss is NaN in step 61"
        return event

    rewrite(folder / "events-rank0.jsonl", fail)
    rewrite(
        folder / "events-rank3.jsonl",
        lambda e: None if e["kind"] == "step" and e["step"] > 50 else e,
    )
    run = read_run(folder)
    assert (run.num_ranks, run.missing_ranks) == (4, (2,))
    assert status(run).name == "failed"
    assert problems(run, boxing_rows(run)) == [
        "Rank 0 failed: the loss is NaN in step 61",
        "No events of rank 2 (of 4) are here.",
        "The loss is not finite in 20 of 80 steps, first in step 61.",
        "The ranks' last steps differ (rank 0: 80, rank 1: 80, rank 3: 50).",
    ]
    loss = next(figure for figure in figures(run) if "loss" in figure.label)
    assert loss.value == "not finite"
    chart = charts(run.first)[0]
    assert [mark.text for mark in chart.breaks] == ["61"]
    _, html = rendered(folder)
    assert "nan" not in html.lower().replace("is nan in step", "")


def test_report_of_one_rank_without_extras(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=1, recorded=())
    rewrite(
        folder / "events-rank0.jsonl",
        lambda e: None if e["kind"] in ("evaluate", "save", "result") else e,
    )
    page, html = rendered(folder)
    assert page.all("h2") == [
        "Key figures",
        "Curves",
        "Boxings",
        "Ledger",
        "Plan",
        "Environment",
    ]
    assert "one rank holds everything" in html


def test_report_of_a_start_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=2, num_steps=0, status=None)
    page, _ = rendered(folder)
    assert "Curves" not in page.all("h2")
    assert any("not recorded" in cell for cell in page.all("td"))


def test_report_of_null_and_missing_fields(tmp_path: Path) -> None:
    events = [
        {"kind": "start"},
        {"kind": "step", "step": 1, "loss": None, "grad_norm": None},
        {"kind": "step", "step": 2, "loss": "nan", "seconds": 0},
        {"kind": "evaluate", "step": 2},
        {"kind": "boxing", "step": 2, "name": "x", "start": None, "end": 1.0},
        {"kind": "boxing", "step": 2, "name": "y", "start": 0.5, "end": 1.0},
        {"kind": "node", "step": 2, "name": "z", "lane": "odd", "start": 2, "end": 1},
        {"kind": "result"},
        {"kind": "a later version's"},
        {"kind": "end"},
    ]
    text = "\n".join(json.dumps(e) for e in events) + '\n17\n{"kind": "ste'
    (tmp_path / "events-rank0.jsonl").write_text(text)
    run = read_run(tmp_path)
    assert run.first.unreadable_lines == 2
    assert len(run.first.moves) == 1
    rendered(tmp_path)


def test_report_unknown_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder .*nowhere.*events-rank<r>\.jsonl"):
        render(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds nothing; needed a run folder"):
        render(tmp_path)
    write_run(tmp_path / "gpt-1", num_steps=3)
    with pytest.raises(ValueError, match=r"holds \['gpt-1'\].*did you mean .*gpt-1"):
        render(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "events-rank0.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds a start or step event"):
        render(tmp_path / "empty")


def test_report_of_a_long_run_is_small(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", num_ranks=2, num_steps=10_000, recorded=range(100, 200)
    )
    path = render(folder)
    assert path.stat().st_size < 500_000
    assert (folder / "trace.json").stat().st_size < 2_000_000


def test_report_boxing_that_is_not_in_the_plan(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")

    def forget(event: dict[str, Any]) -> dict[str, Any]:
        if "boxings" in event:
            event["boxings"] = [
                b for b in event["boxings"] if b["name"] != "grads.head"
            ]
        if event["kind"] == "boxing":
            event["waited"] = 0.001
        return event

    for rank in range(2):
        rewrite(folder / f"events-rank{rank}.jsonl", forget)
    rows = {row.name: row for row in boxing_rows(read_run(folder))}
    assert rows["grads.head"].change == "not in the plan"
    assert math.isnan(rows["grads.head"].ratio)
    assert rows["grads.head"].waited_seconds == pytest.approx(0.001)
    total = total_row(list(rows.values()))
    assert total.ratio == 1.0  # only of those whose bound is known
    assert total.received_bytes == step_bytes(2)


def test_report_environment_names_ranks_that_differ(tmp_path: Path) -> None:
    run: RunEvents = read_run(write_run(tmp_path / "run", num_ranks=4, num_steps=2))
    rows = dict(environment(run))
    assert rows["system"] == "Linux x86_64 (rank 0, 1); Linux aarch64 (rank 2, 3)"
    assert rows["torch"] == "2.13.0"
