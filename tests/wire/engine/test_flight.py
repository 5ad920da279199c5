"""The flight record keeps the last events, and is written whole or not at all."""

import json
import threading
import time

import pytest

from placet.wire.engine.flight import (
    FlightRecord,
    Noted,
    flight_name,
    flights_in,
    load,
)


def test_flight_record_comes_back_as_it_was_noted(tmp_path):
    record = FlightRecord()
    before = time.time()
    record.note(Noted.SUBMIT, "grads.0", group=(0, 1), move="AllReduce")
    record.note(Noted.LOST, rank=1, text="its socket ended")
    path = tmp_path / "run" / flight_name(0)
    record.write(path, rank=0, num_ranks=2, report={"rank": 0})
    flight = load(path)
    assert (flight.rank, flight.num_ranks, flight.num_dropped) == (0, 2, 0)
    assert flight.about == {"report": {"rank": 0}}
    first, second = flight.notes
    assert (first.event, first.key) == ("submit", "grads.0")
    assert first.fields == {"group": [0, 1], "move": "AllReduce"}
    assert (second.event, second.key, second.fields["rank"]) == ("lost", "", 1)
    # Clocks may be set meanwhile, but not by a minute.
    assert before - 60 < first.seconds <= second.seconds <= flight.seconds
    assert [p.name for p in path.parent.iterdir()] == ["flight-0.jsonl"]


def test_flight_record_drops_the_oldest_and_says_how_many(tmp_path):
    record = FlightRecord(capacity=3)
    for i in range(10):
        record.note("x", str(i))
    record.write(tmp_path / "f", rank=0, num_ranks=1)
    flight = load(tmp_path / "f")
    assert [n.key for n in flight.notes] == ["7", "8", "9"]
    assert flight.num_dropped == 7


def test_flight_record_of_nothing_can_be_read(tmp_path):
    FlightRecord().write(tmp_path / "f", rank=2, num_ranks=3)
    assert load(tmp_path / "f").notes == ()


def test_flight_record_takes_notes_of_many_threads_while_it_is_written(tmp_path):
    record = FlightRecord(capacity=500)
    done = threading.Event()

    def note(name: str) -> None:
        for i in range(3000):
            record.note("x", name, i=i)

    def write() -> None:
        while not done.is_set():
            record.write(tmp_path / "f", rank=0, num_ranks=1)

    writer = threading.Thread(target=write)
    threads = [threading.Thread(target=note, args=(n,)) for n in "abc"]
    for thread in (writer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    writer.join()
    record.write(tmp_path / "f", rank=0, num_ranks=1)
    flight = load(tmp_path / "f")
    assert len(flight.notes) == 500
    for name in "abc":
        numbers = [n.fields["i"] for n in flight.notes if n.key == name]
        assert numbers == list(range(3000 - len(numbers), 3000))


def test_flight_record_that_cannot_be_written_leaves_the_old_one(tmp_path):
    record = FlightRecord()
    path = tmp_path / "f"
    record.write(path, rank=0, num_ranks=1)
    old = path.read_text()

    class Silent:
        def __str__(self) -> str:
            raise OSError("no")

    record.note("x", field=Silent())
    with pytest.raises(OSError, match="no"):
        record.write(path, rank=0, num_ranks=1)
    assert path.read_text() == old
    assert list(tmp_path.iterdir()) == [path]


def test_flight_record_of_no_events_is_refused():
    with pytest.raises(ValueError, match="a flight record of 0 events"):
        FlightRecord(0)


def test_flights_in_a_folder_are_found_by_name(tmp_path):
    for name in ("flight-0.jsonl", "flight-12.jsonl", ".flight-1.jsonl.7.part", "x"):
        (tmp_path / name).touch()
    assert sorted(flights_in(tmp_path)) == [0, 12]


HEAD = {
    "kind": "flight",
    "version": 1,
    "rank": 0,
    "num_ranks": 1,
    "pid": 1,
    "wall_seconds": 2.0,
    "monotonic_seconds": 1.0,
    "num_dropped": 0,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({**HEAD, "kind": "start"}),
        json.dumps({**HEAD, "version": 2}),
        json.dumps({**HEAD, "rank": None}),
        json.dumps(HEAD) + '\n{"t": 1.0, "event": "x"}',
        json.dumps(HEAD) + '\n{"t": 1.0, "eve',
    ],
)
def test_file_that_is_no_flight_record_is_refused_by_name(tmp_path, text):
    path = tmp_path / "flight-0.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"flight-0\.jsonl is no flight record"):
        load(path)
