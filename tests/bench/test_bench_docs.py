"""docs/benchmarks.md says what bench/results/ holds."""

import json
from dataclasses import asdict
from pathlib import Path

from bench import docs
from bench.docs import newest, render
from bench.harness import Options, Outcome, as_json
from bench.prove import Ran, State, Suite
from bench.prove import as_json as prove_json
from bench.ratios import Ratio, Row


def result(name: str, date: str, ratio: float) -> dict:
    row = Row("step", "s", ratio, 1.0, Ratio(ratio, ratio - 0.01, ratio + 0.01), 1.03)
    options = Options(quick=False, num_pairs=300, budget_seconds=900)
    found = as_json(name, "How fast?", Outcome((row,), ("So.",)), options, 120.0)
    return found | {"date": date}


def test_page_is_current():
    assert docs.main(["--check"]) == 0, "run python -m bench.docs"


def test_page_holds_the_newest_of_each(tmp_path: Path):
    for name, date, ratio in (
        ("b", "2026-01-02", 0.98),
        ("b", "2025-12-31", 0.5),
        ("a", "2026-01-01", 1.5),
    ):
        path = tmp_path / f"{name}-{date}.json"
        path.write_text(json.dumps(result(name, date, ratio)))
    page = render(newest(tmp_path))
    assert page.index("## a\n") < page.index("## b\n")
    assert (
        "| step | 980.00 ms | 1.00 s | 0.980 [0.970, 0.990] | <= 1.03 | met |" in page
    )
    assert "| 1.500 [1.490, 1.510] | <= 1.03 | missed |" in page
    assert "0.500" not in page
    assert "So." in page
    assert "`python -m bench.b`, 2026-01-02, 2.0 min" in page


def test_page_shows_the_long_suites():
    ran = Ran("tests/wire", "python -m pytest", 1, 90.0, {"passed": 7, "failed": 2})
    state = State("f", {"tests/wire": ran})
    page = render([prove_json(state, [Suite("tests/wire", ())])])
    assert "| tests/wire | exit code 1 | 7 | 2 | 1.5 |" in page
    assert asdict(ran)["counts"] == {"passed": 7, "failed": 2}
