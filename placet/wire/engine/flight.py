"""The flight record: a rank's last events, kept in memory, written when it fails.

    record = FlightRecord()
    record.note(Noted.SUBMIT, "grads.0", group=(0, 1), move="AllReduce of 4")
    record.write(run / flight_name(0), rank=0, num_ranks=2)

`placet doctor RUN` reads the records of all ranks. It lines them up by the wall clock
that stands in each one's first line beside the monotonic one of its events.
"""

import json
import os
import re
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

VERSION = 1
_NAME = re.compile(r"flight-(\d+)\.jsonl")

_Line: TypeAlias = tuple[int, float, str, str, dict[str, object]]
"""How many came before it, monotonic seconds, event, key, fields."""


class Noted(StrEnum):
    """The events that `placet doctor` understands, with the fields of each.

    Others may be noted as well; they are shown, not understood.
    """

    SUBMIT = "submit"
    """A move was submitted: key, group, move (its text)."""
    HEARD = "heard"
    """Another member is known to have submitted it: key, group, rank."""
    WAIT = "wait"
    """The program begins to wait for it: key, group."""
    WAITED = "waited"
    """The program goes on: key, group."""
    DONE = "done"
    """It is done on this rank: key, group."""
    FAILED = "failed"
    """It failed on this rank: key, group, error (the class's name), text."""
    LOST = "lost"
    """The link to a rank ended: rank, text. No key."""
    REFORM = "reform"
    """The ranks that are left go on as a new group, with new numbers. No key."""


@dataclass(frozen=True)
class Note:
    """One event of a record.

    Args:
        seconds: when, on the wall clock (since 1970).
        event: see `Noted`.
        key: of the move that it is about; may be empty.
        fields: whatever else was noted.
    """

    seconds: float
    event: str
    key: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Flight:
    """A record as it was read.

    Args:
        rank, num_ranks, pid: whose it is.
        seconds: when it was written, on the wall clock.
        num_dropped: older events that no longer fitted.
        notes: its events, in order.
        about: whatever else its writer said in the first line.
    """

    rank: int
    num_ranks: int
    pid: int
    seconds: float
    num_dropped: int
    notes: tuple[Note, ...]
    about: Mapping[str, Any]


class FlightRecord:
    """A ring of the last events; any thread may note, at about 1 microsecond each.

    It takes no lock: appending to a deque is atomic, so a signal handler may note or
    write while the thread that it interrupted does so.

    Args:
        capacity: how many events are kept; older ones are dropped.

    Raises:
        ValueError: the capacity is below 1.
    """

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise ValueError(f"a flight record of {capacity} events; it needs 1")
        self._ring: deque[_Line] = deque(maxlen=capacity)
        self._numbers = count()

    def note(self, event: str, key: str = "", **fields: object) -> None:
        """Keep an event; fields are small values that JSON can hold."""
        self._ring.append((next(self._numbers), time.monotonic(), event, key, fields))

    def last(self, event: str) -> float | None:
        """When an event of a kind was last noted, as time.monotonic tells it."""
        lines = reversed(self._lines())
        return next((line[1] for line in lines if line[2] == event), None)

    def write(self, path: Path, *, rank: int, num_ranks: int, **about: object) -> None:
        """Write all events to `path`, whole or not at all; makes its folder.

        Args:
            path: where to; `flight_name(rank)` in the run's folder is found by doctor.
            rank, num_ranks: whose it is.
            about: more for the first line. `report`, a `Report` as a dict, saves
                doctor from working out what was pending.

        Raises:
            OSError: it could not be written.
        """
        lines = self._lines()
        head = {
            **about,
            "kind": "flight",
            "version": VERSION,
            "rank": rank,
            "num_ranks": num_ranks,
            "pid": os.getpid(),
            "wall_seconds": time.time(),
            "monotonic_seconds": time.monotonic(),
            "num_dropped": lines[0][0] if lines else 0,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with unfinished.open("w", encoding="utf-8") as file:
                file.write(json.dumps(head, default=str) + "\n")
                for _, seconds, event, key, fields in lines:
                    line = {**fields, "t": seconds, "event": event, "key": key}
                    file.write(json.dumps(line, default=str) + "\n")
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _lines(self) -> list[_Line]:
        while True:
            with suppress(RuntimeError):  # another thread noted meanwhile: once more
                return sorted(self._ring, key=lambda line: line[0])


def flight_name(rank: int) -> str:
    """The name of a rank's record in its run's folder."""
    return f"flight-{rank}.jsonl"


def flights_in(folder: Path) -> dict[int, Path]:
    """The records in a run's folder, by rank."""
    found = {_NAME.fullmatch(path.name): path for path in folder.iterdir()}
    return {int(match[1]): path for match, path in found.items() if match}


def load(path: Path) -> Flight:
    """Read a record.

    Raises:
        ValueError: it is none; says what is wrong and where.
        OSError: it could not be read.
    """
    first, *rest = path.read_text(encoding="utf-8", errors="replace").split("\n")
    try:
        head = json.loads(first)
        if head.pop("kind") != "flight" or head.pop("version") != VERSION:
            raise ValueError(f"not of version {VERSION}")
        pid, dropped = int(head.pop("pid")), int(head.pop("num_dropped"))
        rank, num_ranks = int(head.pop("rank")), int(head.pop("num_ranks"))
        wall = float(head.pop("wall_seconds"))
        ahead = wall - float(head.pop("monotonic_seconds"))
        notes = tuple(_note(line, ahead) for line in rest if line)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no flight record: {error!r}") from None
    return Flight(rank, num_ranks, pid, wall, dropped, notes, head)


def _note(line: str, ahead: float) -> Note:
    fields = json.loads(line)
    seconds = float(fields.pop("t")) + ahead
    return Note(seconds, str(fields.pop("event")), str(fields.pop("key")), fields)
