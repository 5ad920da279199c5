"""The wire's benches: what they compare, and how they read what ranks found."""

import pytest

from bench.collectives import MIB, Case, case_rows, cases
from bench.harness import Measured, Options, Samples
from bench.wire_lab import bytes_per_s, collect, notes_of_run, rows_of_run, runs
from bench.wire_lab_rank import Found, Spec
from placet.job.lab import Lab

HALF = Measured(*(Samples((t,) * 12, (2 * t,) * 12) for t in (1.0, 2.0, 2.0)))


def test_collectives_have_the_stated_targets():
    by_title = {c.title(2): c.most for c in cases(2, quick=False)}
    assert by_title["2 ranks, all-reduce 256 KiB"] == 1 / 1.5
    assert by_title["2 ranks, all-reduce 64 MiB"] == 1 / 1.5
    assert by_title["2 ranks, all-reduce 4 KiB"] == 1
    assert by_title["2 ranks, 64 all-reduces 4 KiB at once"] == 0.5
    assert by_title["2 ranks, 32 all-reduces 1 MiB, random order"] == 1.1
    assert by_title["2 ranks, broadcast 4 MiB"] is None
    four = [c for c in cases(4, quick=False) if c.most is not None]
    assert {c.most for c in four} == {1.0}
    assert {c.kind for c in four} == {"all-reduce"}
    assert len(cases(2, quick=True)) < len(by_title)


def test_collectives_share_a_steps_time_over_its_calls():
    small, large = Case("all-reduce", MIB // 4, 0.6), Case("all-reduce", 16 * MIB, 0.6)
    assert (small.num_calls, large.num_calls) == (16, 1)
    row = case_rows(small, "x", HALF)[0]
    assert (row.ours, row.peer, row.ratio.value) == (1 / 16, 2 / 16, 0.5)
    assert row.verdict == "met"


def test_disorder_is_one_row_against_one_order():
    (row,) = case_rows(Case("disorder", MIB, 1.1), "x", HALF)
    assert (row.name, row.ratio.value, row.most) == ("x, to one order", 0.5, 1.1)


@pytest.mark.parametrize("quick", [True, False])
def test_lab_runs_hold_every_kind(quick: bool):
    wanted = runs(quick=quick)
    assert {run.what for run in wanted} == {"gloo", "hierarchy", "priority"}
    assert len({run.name for run in wanted}) == len(wanted)


def test_lab_cards_carry_what_the_lab_says():
    lab = Lab(4, rate="2gbit", groups="2x2", group_rate="100mbit", uplink_per_host=True)
    assert bytes_per_s(lab, "eth0") == 2e9 / 8
    assert bytes_per_s(lab, "eth1") == 100e6 / 8


def found(*, urgent: bool) -> Found:
    """What each rank of two says: a step sends 10 MB on a card of 100 Mbit/s."""
    seconds = [[1.0] * 12, [4.0] * 12, [4.0] * 12]
    return Found(
        seconds=seconds,
        cpu_seconds=seconds,
        card_bytes={"eth0": [[10_000_000] * 12] * 3},
        urgent_seconds=[[0.1] * 12, [2.0] * 12, [2.0] * 12] if urgent else [[], [], []],
    )


def spec(what: str) -> Spec:
    return Spec(what, "engine", 64 * MIB, 12, 1.0, 0)


def test_lab_rows_of_priority_are_the_urgent_one_and_all():
    (run,) = [run for run in runs(quick=False) if run.what == "priority"]
    rows = rows_of_run(run, spec("priority"), [found(urgent=True)] * 2)
    assert [(r.ratio.value, r.most) for r in rows[:2]] == [(0.05, 0.1), (0.25, 1.05)]
    assert rows[0].name.endswith("64 MiB: 256 KiB urgent")


def test_lab_notes_tell_the_links_share_and_warn_where_it_is_low():
    run = next(run for run in runs(quick=False) if run.name == "2 hosts, 100mbit")
    title, ours, peer = notes_of_run(run, spec("gloo"), [found(urgent=False)] * 2)
    assert title.endswith("12 pairs:")
    assert ours.endswith("9.54 MiB by eth0 in 1.00 s, share 80%")
    assert "share 20%, under 70%" in peer


def test_lab_bench_says_why_it_is_skipped(monkeypatch):
    monkeypatch.setattr("bench.wire_lab.lab_missing", lambda: "not root")
    options = Options(quick=True, num_pairs=1, budget_seconds=1.0, wire="engine")
    outcome = collect(options)
    assert outcome.rows == ()
    assert "not root" in outcome.notes[0]
