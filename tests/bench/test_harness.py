"""The harness: turns, budgets, exit codes, and what is written down."""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from bench import harness
from bench.harness import (
    Measured,
    Options,
    Outcome,
    Samples,
    Side,
    affordable,
    measure,
    of_ranks,
    print_table,
    rows_of,
    run_bench,
    show,
)
from bench.ratios import Ratio, Row


@dataclass
class Clock:
    """A clock that only steps move, and what they did."""

    now: float = 0.0
    turns: list[str] = field(default_factory=list)

    def side(self, name: str, seconds: float) -> Side:
        def step() -> None:
            self.turns.append(name)
            self.now += seconds

        return Side(name, step)

    def read(self) -> float:
        return self.now


def measured(clock: Clock, **options) -> Measured:
    return measure(
        clock.side("ours", 1.0),
        clock.side("peer", 2.0),
        clock.side("control", 3.0),
        clock=clock.read,
        cpu_clock=lambda: 10 * clock.now,
        **options,
    )


def test_measure_takes_turns_in_every_order():
    clock = Clock()
    found = measured(clock, num_pairs=12, budget_seconds=1e9, num_warm_up=1)
    assert found.ours == Samples((1.0,) * 12, (10.0,) * 12)
    assert found.peer == Samples((2.0,) * 12, (20.0,) * 12)
    assert found.control.seconds == (3.0,) * 12
    rounds = [tuple(clock.turns[i : i + 3]) for i in range(3, len(clock.turns), 3)]
    assert len(rounds) == 12
    assert all(rounds.count(order) == 2 for order in set(rounds))
    assert len(set(rounds)) == 6


def test_measure_keeps_to_its_budget_and_asks_the_other_ranks():
    asked: list[int] = []

    def agree(number: int) -> int:
        asked.append(number)
        return 15

    found = measured(Clock(), num_pairs=300, budget_seconds=120, agree=agree)
    assert asked == [20]
    assert found.num_pairs == 15


def test_measure_lets_ranks_begin_each_step_together():
    clock, aligned = Clock(), []
    measured(
        clock,
        num_pairs=2,
        budget_seconds=1e9,
        num_warm_up=1,
        align=lambda: aligned.append(len(clock.turns)),
    )
    assert aligned == list(range(9))


def test_of_ranks_takes_the_slowest_and_all_cpu_time():
    one = Measured(*[Samples((1.0, 4.0), (0.5, 0.5))] * 3)
    other = Measured(*[Samples((3.0, 2.0), (1.0, 0.0))] * 3)
    slowest = Samples((3.0, 4.0), (1.5, 0.5))
    assert of_ranks([one, other]) == Measured(slowest, slowest, slowest)


@pytest.mark.parametrize(
    ("wanted", "round_seconds", "budget_seconds", "rounds"),
    [(300, 0.1, 900, 300), (300, 10, 900, 90), (300, 100, 900, 12), (5, 100, 9, 5)],
)
def test_affordable(wanted, round_seconds, budget_seconds, rounds):
    assert affordable(wanted, round_seconds, budget_seconds) == rounds


def test_rows_hold_the_target_the_control_and_cpu_time():
    rows = rows_of(measured(Clock(), num_pairs=12, budget_seconds=1e9), "mlp", most=0.6)
    assert [(r.name, r.ratio.value, r.verdict) for r in rows] == [
        ("mlp: step time", 0.5, "met"),
        ("mlp: peer against itself", 1.5, "shown"),
        ("mlp: CPU time", 0.5, "shown"),
    ]


def outcome(*ratios: float) -> Outcome:
    rows = tuple(Row("x", "s", r, 1.0, Ratio(r, r, r), most=1.0) for r in ratios)
    return Outcome(rows, notes=("a note [with brackets]",))


@pytest.mark.parametrize(
    ("ratios", "code"), [((0.9, 1.0), 0), ((0.9, 1.1), 1), ((), 0)]
)
def test_run_bench_exits_by_its_targets(monkeypatch, tmp_path: Path, ratios, code):
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    seen: list[Options] = []

    def collect(options: Options) -> Outcome:
        seen.append(options)
        return outcome(*ratios)

    assert run_bench("toy", "Is it?", collect, []) == code
    assert seen == [Options(quick=False, num_pairs=300, budget_seconds=900.0)]
    (path,) = (tmp_path / "results").iterdir()
    result = json.loads(path.read_text())
    assert path.name == f"toy-{result['date']}.json"
    assert [row["verdict"] == "met" for row in result["rows"]] == [
        r <= 1 for r in ratios
    ]
    assert result["command"] == "python -m bench.toy"
    assert {"cpu", "cores", "torch", "load"} <= set(result["machine"])
    assert str(tmp_path) not in path.read_text()


def test_run_bench_quick_is_short_and_leaves_the_results_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "QUICK_RESULTS", tmp_path / "quick")
    seen: list[Options] = []
    run_bench("toy", "Is it?", lambda o: (seen.append(o), outcome(1.0))[1], ["--quick"])
    assert seen == [Options(quick=True, num_pairs=60, budget_seconds=15.0)]
    assert not (tmp_path / "results").exists()
    assert len(list((tmp_path / "quick").iterdir())) == 1


@pytest.mark.parametrize(
    ("given", "wire", "folder"),
    [([], "new", "results"), (["--wire", "old"], "old", "quick")],
)
def test_run_bench_keeps_results_of_the_usual_wire_only(
    monkeypatch, tmp_path, given, wire, folder
):
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "QUICK_RESULTS", tmp_path / "quick")
    seen: list[str] = []
    run_bench(
        "toy",
        "Is it?",
        lambda o: (seen.append(o.wire), outcome(1.0))[1],
        given,
        wires=("new", "old"),
    )
    assert seen == [wire]
    (path,) = (tmp_path / folder).iterdir()
    assert json.loads(path.read_text())["command"].endswith(f"--wire {wire}")


def test_print_table_shows_every_figure():
    console = Console(file=io.StringIO(), width=120)
    print_table("Is it?", outcome(0.9, 1.1), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for shown in ("0.9000", "1.1000", "<= 1", "met", "missed", "[with brackets]"):
        assert shown in text
    row = Row("y", "s", 1, 1, Ratio(1.0, 0.9, 1.1))
    print_table("?", Outcome((row,)), console)
    assert "1.000 [0.900, 1.100]" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.30 ms"),
        (2.5, "s", "2.50 s"),
        (3 << 20, "bytes", "3.00 MiB"),
        (1234, "bytes", "1,234 B"),
        (12345.6, "tokens/s", "1.235e+04 tokens/s"),
    ],
)
def test_show(value: float, unit: str, text: str):
    assert show(value, unit) == text
