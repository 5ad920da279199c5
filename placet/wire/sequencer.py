"""In which order all ranks launch their moves: a pure machine, run by one rank.

    sequencer.announce(Announcement(rank=1, number=0, ...))      # from each member
    sequencer.launches()                                         # -> [Launch, ...]

A carrier that matches moves by order (NCCL, gloo) hangs where two ranks launch two
moves in different orders, also of different groups, as these share a device. So a move
is launched only when all its members have announced it, and all launches stand in one
sequence, of which each rank gets its own part. Any two moves then follow one another
the same way everywhere, and a launched move waits for none that comes later.

Among complete moves the more urgent goes first, then the lesser key. A move in chunks
is launched chunk by chunk: a rank has at most two under way, so that something more
urgent waits for two chunks at most.

Source: the coordinator of Horovod (arXiv:1802.05799), section 3; differs in that it
works without cycles, orders by priority and cuts large moves, as ByteScheduler (SOSP
2019) does on each rank alone.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from placet.wire.engine.keys import short_texts

ROOM = 2
"""Chunks that a rank may have under way: one runs, the next is ready."""

FailureKind: TypeAlias = Literal["WireTimeout", "MoveMismatch", "PeerLost"]

_Called: TypeAlias = tuple[tuple[int, ...], str, int]


@dataclass(frozen=True)
class Announcement:
    """A rank has submitted a move.

    Args:
        rank: which one.
        number: how the rank knows the submission; each its own.
        group, key: what all members share.
        text: all that members must agree on, for people.
        fingerprint: the same, as a hash.
        priority: larger goes first; the largest of all members' counts.
        num_chunks: how many launches it takes.
    """

    rank: int
    number: int
    group: tuple[int, ...]
    key: str
    text: str
    fingerprint: int
    priority: int = 0
    num_chunks: int = 1


@dataclass(frozen=True)
class Launch:
    """The next place in the order: one move or chunk, on all members.

    Args:
        key: of the move.
        numbers: (rank, its number of the submission), for each member.
    """

    key: str
    numbers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Failure:
    """A move that will not be launched (any further), on the members that announced it.

    Args:
        kind: the name of the error.
        text: its message.
        numbers: (rank, its number of the submission).
    """

    kind: FailureKind
    text: str
    numbers: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class _Entry:
    """A move that some member has announced, until it is launched and over."""

    called: _Called
    first: Announcement
    announced: dict[int, Announcement] = field(default_factory=dict)
    num_launched: int = 0
    num_done: int = 0
    failure: Failure | None = None

    @property
    def group(self) -> tuple[int, ...]:
        return self.called[0]

    @property
    def complete(self) -> bool:
        return len(self.announced) == len(self.group)

    @property
    def missing(self) -> list[int]:
        return [r for r in self.group if r not in self.announced]

    @property
    def what(self) -> str:
        return f"key {self.called[1]!r} over {_ranks(self.group)}"

    def numbers(self) -> tuple[tuple[int, int], ...]:
        return tuple((rank, a.number) for rank, a in sorted(self.announced.items()))

    def urgency(self) -> tuple[int, str, tuple[int, ...], int]:
        group, key, turn = self.called
        priority = max(a.priority for a in self.announced.values())
        return -priority, key, group, turn


class Sequencer:
    """Announcements in, launches and failures out; no I/O, no clock.

    Args:
        room: how many chunks a rank may have under way.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._entries: dict[_Called, _Entry] = {}
        self._by_number: dict[tuple[int, int], _Entry] = {}
        self._ready: list[_Entry] = []
        self._turns: Counter[tuple[int, tuple[int, ...], str]] = Counter()
        self._under_way: Counter[int] = Counter()
        self._lost: dict[int, str] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is announced that is not over."""
        return not self._entries

    def announce(self, announcement: Announcement) -> list[Failure]:
        """A rank has submitted a move; what fails because of that."""
        rank, group, key = announcement.rank, announcement.group, announcement.key
        turn = self._turns[rank, group, key]
        self._turns[rank, group, key] += 1
        called = group, key, turn
        entry = self._entries.get(called)
        if entry is None:
            entry = self._entries[called] = _Entry(called, announcement)
        entry.announced[rank] = announcement
        self._by_number[rank, announcement.number] = entry
        if entry.failure is not None:
            return self._repeat(entry, rank)
        if announcement.fingerprint != entry.first.fingerprint:
            return [self._fail(entry, "MoveMismatch", _difference(entry))]
        gone = [r for r in group if r in self._lost]
        if gone:
            return [self._fail(entry, "PeerLost", self._gone(entry, gone[0]))]
        if entry.complete:
            self._ready.append(entry)
        return []

    def launches(self) -> list[Launch]:
        """All that can be launched now, in order; each is given out once."""
        found: list[Launch] = []
        blocked: set[int] = set()
        for entry in sorted(self._ready, key=_Entry.urgency):
            if entry.first.num_chunks == 1:
                # It is over for us: the carrier does the rest.
                found.append(self._launch(entry))
                self._forget(entry)
                continue
            while entry.num_launched < entry.first.num_chunks:
                full = any(self._under_way[r] >= self._room for r in entry.group)
                if full or not blocked.isdisjoint(entry.group):
                    # Lesser ones must not take the room it waits for.
                    blocked.update(entry.group)
                    break
                self._under_way.update(entry.group)
                found.append(self._launch(entry))
        self._ready = [
            e
            for e in self._ready
            if e.num_launched < e.first.num_chunks and e.failure is None
        ]
        return found

    def done(self, rank: int, number: int) -> None:
        """A chunk of a rank's submission is done; `reporter` says so, for all."""
        entry = self._by_number.get((rank, number))
        if entry is None or entry.num_done >= entry.num_launched:
            return
        entry.num_done += 1
        self._under_way.subtract(entry.group)
        if entry.num_done == entry.first.num_chunks:
            self._forget(entry)

    def lose(self, rank: int, cause: str) -> list[Failure]:
        """A rank takes no part any more; what fails because of that."""
        if rank in self._lost:
            return []
        self._lost[rank] = cause
        return [
            self._fail(entry, "PeerLost", self._gone(entry, rank))
            for entry in list(self._entries.values())
            if rank in entry.group and entry.failure is None
        ]

    def expire(self, rank: int, number: int, seconds: float) -> list[Failure]:
        """A rank has waited for too long; [] where the launch is on its way to it."""
        entry = self._by_number.get((rank, number))
        if entry is None or entry.failure is not None:
            return []
        if entry.num_launched == entry.first.num_chunks:
            return []
        text = f"{entry.what}: rank {rank} waited {seconds:.3g} s; {self._late(entry)}"
        return [self._fail(entry, "WireTimeout", text)]

    def _launch(self, entry: _Entry) -> Launch:
        entry.num_launched += 1
        return Launch(entry.called[1], entry.numbers())

    def _fail(self, entry: _Entry, kind: FailureKind, text: str) -> Failure:
        """Fail an entry; it stays until all its members have heard of that."""
        entry.failure = Failure(kind, text, entry.numbers())
        if entry in self._ready:
            self._ready.remove(entry)
        for rank in entry.group:
            self._under_way[rank] -= entry.num_launched - entry.num_done
        entry.num_done = entry.num_launched
        self._forget_if_heard(entry)
        return entry.failure

    def _repeat(self, entry: _Entry, rank: int) -> list[Failure]:
        assert entry.failure is not None
        text = entry.failure.text
        mine = entry.announced[rank]
        if entry.failure.kind == "MoveMismatch":
            text = f"{text}; rank {rank} submitted {mine.text}"
        self._forget_if_heard(entry)
        return [Failure(entry.failure.kind, text, ((rank, mine.number),))]

    def _forget_if_heard(self, entry: _Entry) -> None:
        if all(r in entry.announced or r in self._lost for r in entry.group):
            self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        self._entries.pop(entry.called, None)
        for number in entry.numbers():
            self._by_number.pop(number, None)

    def _gone(self, entry: _Entry, rank: int) -> str:
        return f"{entry.what}: rank {rank} takes no part: {self._lost[rank]}"

    def _late(self, entry: _Entry) -> str:
        if entry.complete:
            return "all members submitted it, but the launches before it are not over"
        who = "; ".join(f"rank {r}, {self._instead(r)}" for r in entry.missing)
        return f"submitted by {_ranks(sorted(entry.announced))}; not by {who}"

    def _instead(self, rank: int) -> str:
        """What a rank may wait for instead of submitting an entry."""
        others = [
            f"{other.called[1]!r} (not submitted by {_ranks(other.missing)})"
            for other in self._entries.values()
            if rank in other.announced and not other.complete and not other.failure
        ]
        if not others:
            return "which has nothing else in flight: it computes, is stuck, or ended"
        shown = ", ".join(others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        return f"which has submitted {shown}{more}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _difference(entry: _Entry) -> str:
    ranks = sorted(entry.announced)
    texts = short_texts([entry.announced[rank].text for rank in ranks])
    said = "; ".join(
        f"rank {rank} submitted {text}" for rank, text in zip(ranks, texts, strict=True)
    )
    return (
        f"{entry.what}: {said}. Submit the same move on all members, or use different "
        "keys"
    )


def reporter(group: Sequence[int]) -> int:
    """The member that says when a chunk is done; it is over on the others soon."""
    return min(group)


def launch_numbers(launches: Iterable[Launch], rank: int) -> list[int]:
    """A rank's part of the order: its numbers of what it launches."""
    return [number for launch in launches for r, number in launch.numbers if r == rank]
