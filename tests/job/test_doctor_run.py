"""`placet doctor RUN` tells who failed first, what was pending, and why."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from placet.job.cli import app
from placet.job.doctor_run import Evidence, Story, read_evidence, rebuild, tell
from placet.job.doctor_tables import ranks_table, show
from placet.wire.engine.diagnose import PendingMove, Report
from placet.wire.engine.flight import Flight, FlightRecord, Note, Noted, flight_name
from placet.wire.engine.waits import Cause

PAIR = (0, 1)


def note(seconds: float, event: str, key: str = "", **fields: Any) -> Note:
    return Note(seconds, event, key, fields)


def flight(
    rank: int, notes: Sequence[Note], *, num_ranks=2, dropped=0, **about: Any
) -> Flight:
    return Flight(rank, num_ranks, 7, 100.0, dropped, tuple(notes), about)


def submits(seconds: float, key: str, group=PAIR, move="AllReduce of 4") -> Note:
    return note(seconds, Noted.SUBMIT, key, group=list(group), move=move)


def waits(seconds: float, key: str, group=PAIR) -> Note:
    return note(seconds, Noted.WAIT, key, group=list(group))


def fails(seconds: float, key: str, group=PAIR, error="WireTimeout") -> Note:
    return note(seconds, Noted.FAILED, key, group=list(group), error=error, text="...")


def done(seconds: float, key: str, group=PAIR) -> Note:
    return note(seconds, Noted.DONE, key, group=list(group))


def loses(seconds: float, rank: int) -> Note:
    return note(seconds, Noted.LOST, rank=rank, text="its socket ended")


def story(*flights: Flight, num_ranks=2, **fields: Any) -> Story:
    return tell(Evidence(num_ranks, {f.rank: f for f in flights}, **fields))


def stuck(rank: int, key: str, at: float = 10.0) -> Flight:
    """A rank that finished 'x', then timed out on `key`."""
    notes = [submits(1, "x"), done(2, "x"), submits(at, key), waits(at + 1, key)]
    return flight(rank, [*notes, fails(at + 31, key)])


def test_cycle_is_found_in_the_records():
    told = story(stuck(0, "a", 11), stuck(1, "b", 10))
    assert told.first == 1
    assert told.sentence == (
        "rank 1 failed first: its move 'b' ended in WireTimeout: rank 1 waits for 'b' "
        "before it submits 'a'; rank 0 waits for 'a' before it submits 'b'"
    )
    assert "before the first wait" in told.fix
    a, b = sorted(told.pending, key=lambda row: row.called)
    assert (a.called, a.submitted, a.missing, a.waiting) == (
        ("a", PAIR),
        (0,),
        (1,),
        (0,),
    )
    assert (b.called, b.submitted, b.missing, b.waiting) == (
        ("b", PAIR),
        (1,),
        (0,),
        (1,),
    )
    assert b.seconds == pytest.approx(31)


def test_mismatch_is_found_in_the_records():
    five = [submits(12, "a", move="AllReduce of 5"), waits(12, "a")]
    told = story(
        stuck(0, "a", at=12), flight(1, [*five, fails(13, "a", error="MoveMismatch")])
    )
    assert told.first == 1
    assert "rank 1 submitted AllReduce of 5, rank 0 AllReduce of 4" in told.sentence
    assert told.pending[0].texts == {0: "AllReduce of 4", 1: "AllReduce of 5"}


def test_error_that_was_no_wait_is_told_in_its_own_words():
    notes = [submits(10, "a"), fails(11, "a", error="MoveMismatch")]
    told = story(flight(0, notes), flight(1, [submits(10, "a")]))
    assert told.sentence == (
        "rank 0 failed first: its move 'a' ended in MoveMismatch: ..."
    )
    assert told.fix == "see docs/errors.md#movemismatch"


def test_killed_rank_is_the_first_although_it_wrote_nothing():
    notes = [submits(10, "a"), waits(10, "a"), loses(12, 1)]
    told = story(
        flight(0, [*notes, fails(12.1, "a", error="PeerLost")]),
        last_words={1: "loading shard 7"},
        logs=frozenset({1}),
    )
    assert told.first == 1
    assert told.sentence == (
        "rank 1 failed first: rank 0 lost it (its socket ended); it left no flight "
        "record; its log ends with 'loading shard 7'"
    )
    assert told.fix.startswith("see the output of rank 1 (rank1.log); dmesg")
    assert [(r.has_record, r.report is None) for r in told.ranks] == [
        (True, False),
        (False, True),
    ]
    assert told.pending[0].missing == (1,)


def test_rank_that_raised_is_first_although_its_own_wire_was_well():
    notes = [submits(10, "a"), waits(10, "a"), loses(12, 1)]
    told = story(
        flight(0, [*notes, fails(12.1, "a", error="PeerLost")]),
        flight(1, [submits(1, "x"), done(2, "x")]),
    )
    assert told.first == 1
    assert "its own record shows no failure before" in told.sentence


def test_rank_that_left_because_it_timed_out_is_not_called_lost():
    one = [submits(9, "b"), waits(9, "b"), loses(41.5, 0), fails(41.6, "b")]
    told = story(stuck(0, "a"), flight(1, one))
    assert told.first == 0
    assert told.explanation
    assert told.explanation.cause == Cause.CYCLE


def test_slow_rank_is_told_as_it_was_when_the_other_failed():
    late = [submits(1, "x"), done(2, "x"), submits(60, "a"), loses(60, 0)]
    told = story(stuck(0, "a"), flight(1, [*late, fails(61, "a", error="PeerLost")]))
    assert told.explanation
    assert told.explanation.cause == Cause.LATE
    assert "rank 1 has not submitted 'a' yet; it computes or sleeps" in told.sentence
    assert [row.called[0] for row in told.pending] == ["a"]


def test_rank_without_a_record_that_nobody_lost_is_dead_or_stopped():
    told = story(stuck(0, "a"))
    assert told.explanation
    assert told.explanation.cause == Cause.SILENT
    assert told.ranks[1].report is None


def test_hang_without_a_failure_is_explained():
    hung = [flight(r, [submits(10, k), waits(11, k)]) for r, k in ((0, "a"), (1, "b"))]
    told = story(*hung)
    assert told.first is None
    assert told.sentence.startswith(
        "no rank's wire failed, but one still waits: rank 0"
    )
    assert told.explanation
    assert told.explanation.cause == Cause.CYCLE


def test_failure_that_was_outlived_is_none():
    notes = [submits(1, "a"), loses(2, 1), fails(2, "a", error="PeerLost")]
    after = [note(3, Noted.REFORM), submits(4, "b", (0,)), done(5, "b", (0,))]
    told = story(flight(0, [*notes, *after]), num_ranks=1)
    assert (told.first, told.fix, told.pending) == (None, "", ())
    assert told.sentence.startswith("nothing failed")


def test_loss_that_was_outlived_is_not_blamed_for_what_came_later():
    old = [submits(1, "x"), loses(2, 2), fails(2, "x", error="PeerLost")]
    notes = [
        [*old, note(3, Noted.REFORM), submits(4, k), waits(5, k), fails(35, k)]
        for k in "ab"
    ]
    told = story(flight(0, notes[0]), flight(1, notes[1]))
    assert told.first == 0
    assert told.explanation
    assert told.explanation.cause == Cause.CYCLE
    assert sorted(row.called[0] for row in told.pending) == ["a", "b"]


def test_job_that_failed_outside_the_wire_says_so():
    told = story(flight(0, []), flight(1, []), statuses={0: "done", 1: "failed"})
    assert told.sentence == "rank 1 failed, with no collective to blame"


def test_a_log_is_named_only_if_it_is_there():
    told = story(flight(0, []), flight(1, []), statuses={1: "failed"})
    assert told.fix == "see the output of rank 1"
    logs = frozenset({0, 1})
    told = story(flight(0, []), flight(1, []), statuses={1: "failed"}, logs=logs)
    assert told.fix == "see the output of rank 1 (rank1.log)"


def test_rank_of_a_good_run_finished():
    console = Console(file=StringIO(), width=100, highlight=False)
    show(story(num_ranks=2, statuses={0: "done", 1: "done"}), console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert text.startswith("All 2 ranks finished.\n")
    assert (
        text.count("finished") == 4
    )  # that, the column "finished last", and two ranks
    assert "not known" not in text


def test_message_that_says_no_more_is_not_repeated():
    cycle = story(stuck(0, "a", 11), stuck(1, "b", 10))
    assert cycle.explanation
    ends = [
        note(n.seconds, n.event, n.key, **{**n.fields, "text": cycle.explanation.text})
        if n.event == Noted.FAILED
        else n
        for n in stuck(1, "b", 10).notes
    ]
    console = Console(file=StringIO(), width=500, highlight=False)
    show(story(stuck(0, "a", 11), flight(1, ends)), console)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count(cycle.explanation.sentence) == 1


def test_rebuild_counts_uses_of_one_key_and_what_was_heard():
    heard = note(4.5, Noted.HEARD, "a", group=[0, 1, 2], rank=2)
    every = (0, 1, 2)
    notes = [submits(1, "a", every), submits(4, "a", every), done(4.2, "a", every)]
    report = rebuild(flight(0, [*notes, heard, waits(5, "a", every)]))
    assert report == Report(
        rank=0,
        pending=(PendingMove("a", every, "AllReduce of 4", 96.0, (2,)),),
        waiting_for_key="a",
        waiting_for_group=every,
        finished=("a",),
        waiting_seconds=95.0,
        finished_seconds=pytest.approx(95.8),
        submitted_seconds=96.0,
    )
    assert rebuild(flight(0, notes), until_seconds=3).pending[0].seconds == 2


def test_rebuild_of_a_record_that_dropped_events_takes_the_report_in_it():
    kept = Report(0, (PendingMove("old", PAIR, "AllReduce", 90.0),), "old", PAIR, ())
    about = {"report": json.loads(json.dumps(asdict(kept)))}
    assert rebuild(flight(0, [waits(99, "x")], dropped=5, **about)) == kept
    assert rebuild(flight(0, [waits(99, "x")], **about)).waiting_for_key == "x"


def write_run(folder: Path) -> None:
    """A run of 3 ranks in a cycle, of which one left a torn record and a log."""
    events = {"kind": "start", "t": 0.0, "time_unix": 1.0, "num_ranks": 3}
    step = {"kind": "step", "t": 1.0, "step": 12}
    end = {"kind": "end", "t": 2.0, "status": "failed", "step": 12}
    keys = ("layers.[0].grads", "layers.1.grads")
    records = (FlightRecord(), FlightRecord())
    for event in (Noted.SUBMIT, Noted.WAIT, Noted.FAILED):
        for record, key in zip(records, keys, strict=True):
            fields = {"move": "AllReduce of 1048576 floats", "error": "WireTimeout"}
            text = "it waited [in vain]"
            record.note(event, key, group=PAIR, text=text, **fields)
    for rank, record in enumerate(records):
        lines = (json.dumps(line) for line in (events, step, end))
        (folder / f"events-rank{rank}.jsonl").write_text("\n".join(lines))
        record.write(folder / flight_name(rank), rank=rank, num_ranks=3)
    (folder / flight_name(2)).write_text('{"kind": "fli')
    (folder / "rank2.log").write_text("step 12\nKilled by [the system]\n\n")


def test_evidence_is_read_from_a_run_folder(tmp_path):
    write_run(tmp_path)
    evidence = read_evidence(tmp_path)
    assert evidence.num_ranks == 3
    assert sorted(evidence.flights) == [0, 1]
    assert evidence.statuses == {0: "failed", 1: "failed"}
    assert evidence.steps == {0: 12, 1: 12}
    assert evidence.last_words == {0: "", 1: "", 2: "Killed by [the system]"}
    assert "flight-2.jsonl is no flight record" in evidence.problems[0]


@pytest.mark.parametrize("width", [80, 120])
def test_screen_fits_and_shows_text_as_it_is(tmp_path, width):
    write_run(tmp_path)
    console = Console(file=StringIO(), width=width, highlight=False)
    show(tell(read_evidence(tmp_path)), console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert text.startswith("Rank 0 failed first: its move 'layers.[0].grads' ended in")
    words = re.sub(r"\s+", " ", text)
    assert "rank 0 waits for 'layers.[0].grads' before it submits" in words
    assert "rank2.log ends: Killed by [the system]" in text
    assert "no record" in text
    assert "rank 0 raised WireTimeout:\nit waited [in vain]\n" in text
    assert "not read:" in text


def test_screen_of_many_ranks_shows_those_that_matter():
    every = tuple(range(64))
    notes = [submits(10, "a", every), waits(10, "a", every), fails(40, "a", every)]
    stuck = [flight(r, notes, num_ranks=64) for r in every if r not in (40, 50)]
    at_work = flight(50, [submits(1, "x"), done(2, "x")], num_ranks=64)
    told = story(*stuck, at_work, num_ranks=64)
    table = ranks_table(told)
    shown = [str(cell) for cell in table.columns[0].cells]
    assert len(shown) == 21
    assert {"0", "40", "50"} <= set(shown)
    assert shown[-1] == "..."
    assert [int(r) for r in shown[:-1]] == sorted(int(r) for r in shown[:-1])


def test_command_explains_a_run(tmp_path):
    write_run(tmp_path)
    (tmp_path / "flight-2.jsonl").unlink()
    done = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Rank 0 failed first")


def test_command_works_from_flight_records_alone(tmp_path):
    write_run(tmp_path)
    for path in tmp_path.glob("events-*"):
        path.unlink()
    done = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "unknown" in done.output


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_command_refuses_what_is_no_run(tmp_path, name, capsys):
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / name)])
    assert done.exit_code == 2
    assert "needed a run folder" in done.output + capsys.readouterr().err
