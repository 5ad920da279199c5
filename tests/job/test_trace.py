"""The trace beside the report: valid trace events, the run's own times and bytes."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from placet.job.report import render
from placet.job.report_events import read_run
from placet.job.trace import MAX_STEPS, trace
from testing.synthetic_run import boxings, write_run

NEEDED = {
    "X": {"name", "pid", "tid", "ts", "dur", "args"},
    "b": {"name", "cat", "id", "pid", "tid", "ts", "args"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "tid", "args"},
}


def events_of(folder: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    render(folder)
    text = (folder / "trace.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=refuse)["traceEvents"]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_trace_is_valid(tmp_path: Path, num_ranks: int) -> None:
    events = events_of(write_run(tmp_path / "run", num_ranks=num_ranks))
    for event in events:
        assert NEEDED[event["ph"]] <= set(event), event
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    assert {e["pid"] for e in events} == set(range(num_ranks))
    names = [
        (e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"
    ]
    lanes = ["steps", "compute", "move", "update", "load", "save"]
    assert names == [(rank, lane) for rank in range(num_ranks) for lane in lanes]
    # slices of a thread nest or follow one another, never cross
    for rank in range(num_ranks):
        for tid in range(len(lanes)):
            own = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
            own = sorted((e["ts"], e["dur"]) for e in own if e["tid"] == tid)
            for (ts, dur), (after, _) in pairwise(own):
                assert ts + dur <= after + 0.01


def test_trace_moves_carry_their_bytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=2, recorded=(3, 4, 5))
    events = events_of(folder)
    begins = {e["id"]: e for e in events if e["ph"] == "b"}
    ends = {e["id"]: e for e in events if e["ph"] == "e"}
    assert len(begins) == sum(e["ph"] == "b" for e in events) == 2 * 3 * 12
    assert begins.keys() == ends.keys()
    planned = {boxing["name"]: boxing for boxing in boxings(2)}
    for key, begin in begins.items():
        assert ends[key]["ts"] >= begin["ts"]
        assert (ends[key]["name"], ends[key]["pid"]) == (begin["name"], begin["pid"])
        sent = planned[begin["name"]]["sent_bytes"]
        assert begin["args"] | {"step": 0} == {
            "sent_bytes": sent,
            "received_bytes": sent,
            "predicted_sent_bytes": sent,
            "predicted_received_bytes": sent,
            "step": 0,
        }
    run = read_run(folder)
    first = min(run.first.moves, key=lambda m: m.start_seconds)
    assert begins["0." + min(k.split(".")[1] for k in begins)]["pid"] == 0
    starts = [e["ts"] for e in begins.values() if e["pid"] == 0]
    assert min(starts) == pytest.approx(first.start_seconds * 1e6, abs=0.01)


def test_trace_steps_hold_their_nodes(tmp_path: Path) -> None:
    events = events_of(write_run(tmp_path / "run", num_ranks=2, recorded=(3, 4)))
    steps = [e for e in events if e["ph"] == "X" and e["tid"] == 0]
    assert [e["name"] for e in steps] == ["step 3", "step 4"] * 2
    for step in steps:
        number = int(step["name"].split()[1])
        own = [
            e
            for e in events
            if e["pid"] == step["pid"] and e.get("args", {}).get("step") == number
        ]
        assert len(own) == 14 + 12
        assert all(step["ts"] <= e["ts"] + 0.01 for e in own)
        assert step["args"]["loss"] > 0


def test_trace_leaves_out_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=1, recorded=(3,))
    path = folder / "events-rank0.jsonl"
    bad = json.dumps({"kind": "step", "step": 3, "loss": math.nan})
    path.write_text(path.read_text() + bad)
    events = events_of(folder)
    assert not [e for e in events if e["ph"] == "C"]


def test_trace_keeps_the_last_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_steps=80, recorded=range(1, 81))
    events = trace(read_run(folder))["traceEvents"]
    steps = [e["name"] for e in events if e["ph"] == "X" and not e["tid"]]
    assert steps[:MAX_STEPS] == [f"step {i}" for i in range(81 - MAX_STEPS, 81)]


def test_trace_of_a_run_that_recorded_nothing(tmp_path: Path) -> None:
    events = events_of(write_run(tmp_path / "run", recorded=()))
    assert {e["ph"] for e in events} == {"M"}


def test_trace_nodes_inside_another_nest(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=1, recorded=(3,))
    path = folder / "events-rank0.jsonl"
    node = {"kind": "node", "step": 3, "lane": "save"}
    outer = node | {"name": "outer", "start": 2.0, "end": 3.0}
    inner = [
        node | {"name": f"inner {i}", "start": 2 + i / 2, "end": 2.5 + i / 2}
        for i in range(2)
    ]
    path.write_text(path.read_text() + "\n".join(map(json.dumps, [*inner, outer])))
    events = events_of(folder)
    slices = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == 5]
    assert slices == ["outer", "inner 0", "inner 1"]


def test_trace_nodes_that_cross_are_asynchronous(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=1, recorded=(3,))
    path = folder / "events-rank0.jsonl"
    node = {"kind": "node", "step": 3, "lane": "save"}
    nodes = [
        node | {"name": f"write {i}", "start": 2 + i / 10, "end": 2.15 + i / 10}
        for i in range(7)
    ]
    path.write_text(path.read_text() + "\n".join(map(json.dumps, nodes)))
    events = events_of(folder)
    slices = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == 5]
    begins = [e["name"] for e in events if e["ph"] == "b"]
    assert slices == ["write 0", "write 2", "write 4", "write 6"]
    assert begins == ["write 1", "write 3", "write 5"]
    assert {e["cat"] for e in events if e["ph"] == "b"} == {"save"}


def test_trace_shows_a_move_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_ranks=2, recorded=(3,))
    path = folder / "events-rank0.jsonl"
    node = {"kind": "node", "step": 3, "lane": "move", "start": 1.7, "end": 1.8}
    same, other = node | {"name": "grads.head"}, node | {"name": "rotation"}
    path.write_text(path.read_text() + json.dumps(same) + "\n" + json.dumps(other))
    events = events_of(folder)
    begins = [e["name"] for e in events if e["ph"] == "b" and e["pid"] == 0]
    assert begins.count("grads.head") == 1
    assert begins.count("rotation") == 1
