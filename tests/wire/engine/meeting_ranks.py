"""Ranks that meet in the threads of one process, over a store in memory."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from placet.wire.engine.core import Link
from placet.wire.engine.meeting import Meeting, meet


class MemoryStore:
    """A `MeetingStore` of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, seconds: float) -> bytes:
        assert seconds > 0
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, seconds):
                raise TimeoutError(key)
            return self.values[key]


def meet_each(
    num_ranks: int,
    *,
    store: Any = None,
    ranks: Sequence[int] | None = None,
    each: Callable[[int], dict[str, Any]] = lambda rank: {},
    **changes: Any,
) -> list[Meeting | BaseException]:
    """What `meet` gives, or raises, on each of the ranks.

    Args:
        num_ranks: of the meeting.
        store: where; a new one by default.
        ranks: those who come; all by default.
        each: arguments of `meet` for one rank.
        changes: arguments of `meet` for all.
    """
    store = MemoryStore() if store is None else store
    arguments: dict[str, Any] = {
        "timeout_seconds": 20.0,
        "share_memory": False,
        "memory_bytes": 4096,
        "interface": "lo",
        **changes,
    }
    who = range(num_ranks) if ranks is None else ranks
    with ThreadPoolExecutor(len(who)) as pool:
        futures = [
            pool.submit(meet, store, rank, num_ranks, **{**arguments, **each(rank)})
            for rank in who
        ]
        return [future.exception() or future.result() for future in futures]


def meet_all(num_ranks: int, **changes: Any) -> list[Meeting]:
    """The same where all should meet; the first error is raised."""
    came = meet_each(num_ranks, **changes)
    meetings = [one for one in came if isinstance(one, Meeting)]
    for error in came:
        if isinstance(error, BaseException):
            close(meetings)
            raise error
    return meetings


def link(meeting: Meeting, peer: int) -> Link:
    """The link to a peer."""
    return next(link for link in meeting.links if link.peer == peer)


def close(meetings: Sequence[Meeting]) -> None:
    """Close all that meetings opened."""
    for one in (one for meeting in meetings for one in meeting.links):
        for sock in one.sockets:
            sock.close()
        for memory in {one.send_memory, one.receive_memory} - {-1}:
            os.close(memory)


def open_descriptors() -> dict[str, str]:
    """The open files, sockets and memory of this process."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = os.readlink(path)
        except OSError:
            continue  # the listing's own
    return found


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fails if what runs inside leaves a descriptor open."""
    before = open_descriptors()
    yield
    assert open_descriptors() == before
