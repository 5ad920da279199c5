"""The engine's protocol on a virtual clock: large, fast, one interleaving at a time.

    simulate(job, rules) -> Timed      who ended when, and how much was set aside

A frame of n bytes holds its link for n / bytes_per_second and arrives latency_seconds
after that (the alpha-beta model); the two directions of a pair are two links. Schedules
are the engine's own. What can be done at once takes no time: the wire is what is slow.

With `rules.chance` the choice among what can be sent, how long frames take and when
they arrive are random (in order on each link): another interleaving for each seed.
"""

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from placet.wire.engine.frames import EAGER_BYTES, EARLY_BYTES, HEADER, SLICE_BYTES
from testing.wire_model.cases import Case
from testing.wire_model.tables import Table

Pick: TypeAlias = Literal["urgent", "oldest"]


@dataclass(frozen=True)
class Link:
    """What every link can do.

    Args:
        bytes_per_second: of one direction between two ranks.
        latency_seconds: from the end of a frame's sending to its arrival.
    """

    bytes_per_second: float = 12.5e6
    latency_seconds: float = 1e-4


@dataclass(frozen=True)
class Rules:
    """How ranks choose what to send.

    Args:
        link: see `Link`.
        pick: the most urgent first, or the oldest whatever its priority.
        aging: of so many slices of a link one goes to the oldest; 0 for none.
        preempts: see primitives.Protocol.
        slice_bytes, eager_bytes, early_bytes: see placet.wire.engine.frames.
        chance: a seed for random choices and times; None for none.
    """

    link: Link = Link()
    pick: Pick = "urgent"
    aging: int = 16
    preempts: bool = True
    slice_bytes: int = SLICE_BYTES
    eager_bytes: int = EAGER_BYTES
    early_bytes: int = EARLY_BYTES
    chance: int | None = None


@dataclass(frozen=True)
class Job:
    """What is to be run.

    Args:
        case: who calls what.
        tables: of each rank and collective that it is a member of, what it does.
        priority: of collectives; 0 where it is not given.
        not_before: when a rank may submit a collective at the soonest, in seconds.
    """

    case: Case
    tables: Mapping[tuple[int, int], Table]
    priority: Mapping[int, int] = field(default_factory=dict)
    not_before: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """What came of it.

    Args:
        complete: all calls were got through and all collectives ended.
        ended_seconds: when each rank's part of each collective ended.
        makespan_seconds: when the last thing happened.
        num_slices: data frames in all.
        most_aside_bytes: the most that a rank had to set aside of one peer's.
    """

    complete: bool
    ended_seconds: dict[tuple[int, int], float]
    makespan_seconds: float
    num_slices: int
    most_aside_bytes: int


class _Task:
    """A submitted collective on one rank."""

    __slots__ = ("c", "done", "lanes", "left", "rank", "received", "table")

    def __init__(self, rank: int, c: int, table: Table) -> None:
        self.rank, self.c, self.table = rank, c, table
        self.done = [0] * len(table.num_bytes)
        self.left = sum(table.num_bytes)
        self.lanes: dict[int, _Lane] = {}
        self.received = dict.fromkeys(table.receives, 0)  # the receive that is next


class _Lane:
    """What one collective sends to one peer."""

    __slots__ = ("heard", "next", "priority", "sends", "sent", "task")

    def __init__(self, task: _Task, sends: tuple[int, ...], priority: int) -> None:
        self.task, self.sends, self.priority = task, sends, priority
        self.next = 0
        self.sent = 0
        self.heard = False


class _Link:
    """One direction between two ranks, and who of its sender's waits for it."""

    __slots__ = (
        "busy",
        "dst",
        "heard",
        "lanes",
        "num",
        "owed",
        "recent",
        "src",
        "then",
    )

    def __init__(self, src: int, dst: int) -> None:
        self.src, self.dst = src, dst
        self.busy = False
        self.lanes: list[_Lane] = []  # oldest first
        self.owed: list[int] = []
        self.heard: set[int] = set()
        self.recent = -1  # what the peer has just sent data of
        self.num = 0
        self.then = 0.0  # when the last frame arrives


def simulate(job: Job, rules: Rules = Rules()) -> Timed:
    """Run a job until nothing more can happen."""
    run = _Run(job, rules)
    run.to_the_end()
    case = job.case
    complete = all(
        place == len(calls) for place, calls in zip(run.places, case.calls, strict=True)
    ) and len(run.ended) == sum(map(len, case.groups))
    return Timed(complete, run.ended, run.now, run.num_slices, run.most_aside)


class _Run:
    def __init__(self, job: Job, rules: Rules) -> None:
        self.job, self.rules = job, rules
        self.rng = None if rules.chance is None else random.Random(rules.chance)
        self.now = 0.0
        self.events: list[tuple[float, int, _Link | int, tuple[int, int] | None]] = []
        self.num_events = 0
        self.places = [0] * job.case.num_ranks
        self.tasks: list[dict[int, _Task]] = [{} for _ in self.places]
        self.links: dict[tuple[int, int], _Link] = {}
        self.aside: dict[tuple[int, int], dict[int, int]] = {}
        self.ended: dict[tuple[int, int], float] = {}
        self.num_slices = 0
        self.most_aside = 0

    def to_the_end(self) -> None:
        for rank in range(len(self.places)):
            self._call_on(rank)
        while self.events:
            self.now, _, who, frame = heapq.heappop(self.events)
            if isinstance(who, int):
                self._call_on(who)
            elif frame is None:
                who.busy = False
                self._send_on(who)
            else:
                self._arrive(who, *frame)

    def _later(
        self, when: float, who: "_Link | int", frame: tuple[int, int] | None
    ) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (when, self.num_events, who, frame))

    def _link(self, src: int, dst: int) -> _Link:
        link = self.links.get((src, dst))
        if link is None:
            link = self.links[src, dst] = _Link(src, dst)
        return link

    def _call_on(self, rank: int) -> None:
        calls = self.job.case.calls[rank]
        while self.places[rank] < len(calls):
            call = calls[self.places[rank]]
            if call < 0:
                if (rank, ~call) not in self.ended:
                    return
            else:
                soonest = self.job.not_before.get((rank, call), 0.0)
                if soonest > self.now:
                    self._later(soonest, rank, None)
                    return
            self.places[rank] += 1
            if call >= 0:
                self._submit(rank, call)

    def _submit(self, rank: int, c: int) -> None:
        table = self.job.tables[rank, c]
        task = self.tasks[rank][c] = _Task(rank, c, table)
        priority = self.job.priority.get(c, 0)
        for peer, sends in table.sends.items():
            link = self._link(rank, peer)
            lane = task.lanes[peer] = _Lane(task, sends, priority)
            lane.heard = c in link.heard
            link.lanes.append(lane)
        for peer in table.receives:
            self._link(rank, peer).owed.append(c)
        for j, follows in enumerate(table.follows):
            if table.local[j] and not follows:
                self._do(task, j, table.num_bytes[j])
        for peer in table.receives:
            num_bytes = self.aside.get((peer, rank), {}).pop(c, 0)
            if num_bytes:
                self._take(task, peer, num_bytes)
        for peer in table.peers:
            self._send_on(self._link(rank, peer))
        if not task.left:
            self._end(task)

    def _send_on(self, link: _Link) -> None:
        if link.busy:
            return
        if link.owed:
            self._put(link, ~link.owed.pop(0), 0)
            return
        fits = [(lane, n) for lane in link.lanes if (n := self._may_send(link, lane))]
        if not fits:
            return
        lane, num_bytes = self._choose(link, fits)
        link.num += 1
        self.num_slices += 1
        lane.sent += num_bytes
        j = lane.sends[lane.next]
        if lane.task.done[j] + num_bytes == lane.task.table.num_bytes[j]:
            lane.next += 1
            if lane.next == len(lane.sends):
                link.lanes.remove(lane)
        self._put(link, lane.task.c, num_bytes)
        self._do(lane.task, j, num_bytes)

    def _choose(self, link: _Link, fits: list[tuple[_Lane, int]]) -> tuple[_Lane, int]:
        if self.rng is not None:
            return self.rng.choice(fits)
        aging = self.rules.aging
        if self.rules.pick == "oldest" or (aging and link.num % aging == aging - 1):
            return fits[0]
        # The first of equals is the oldest.
        return max(fits, key=lambda f: (f[0].priority, f[0].task.c == link.recent))

    def _may_send(self, link: _Link, lane: _Lane) -> int:
        task, rules = lane.task, self.rules
        j = lane.sends[lane.next]
        limit = task.table.num_bytes[j]
        for k, start in task.table.follows[j]:
            limit = min(limit, task.done[k] - start)
        num_bytes = min(limit - task.done[j], rules.slice_bytes)
        if num_bytes <= 0:
            return 0
        if not lane.heard:
            num_bytes = min(num_bytes, rules.eager_bytes - lane.sent)
            if num_bytes > 0:
                early = sum(lane.sent for lane in self._unheard(link))
                num_bytes = min(num_bytes, rules.early_bytes - early)
        if not rules.preempts and self._oldest(link.src) is not task:
            return 0
        return max(0, num_bytes)

    def _unheard(self, link: _Link) -> list[_Lane]:
        of_rank = self.tasks[link.src].values()
        lanes = [task.lanes[link.dst] for task in of_rank if link.dst in task.lanes]
        return [lane for lane in lanes if not lane.heard]

    def _oldest(self, rank: int) -> _Task | None:
        # Tasks are kept in the order of submission.
        return next((t for t in self.tasks[rank].values() if t.left), None)

    def _put(self, link: _Link, frame: int, num_bytes: int) -> None:
        link.busy = True
        seconds = (HEADER.size + num_bytes) / self.rules.link.bytes_per_second
        latency = self.rules.link.latency_seconds
        if self.rng is not None:
            seconds *= 2 * self.rng.random()
            latency *= 2 * self.rng.random()
        self._later(self.now + seconds, link, None)
        link.then = max(link.then, self.now + seconds + latency)
        self._later(link.then, link, (frame, num_bytes))

    def _arrive(self, link: _Link, frame: int, num_bytes: int) -> None:
        c = frame if frame >= 0 else ~frame
        rank = link.dst
        back = self._link(rank, link.src)
        task = self.tasks[rank].get(c)
        if frame >= 0:
            back.recent = c
        if c not in back.heard:
            back.heard.add(c)
            if task is not None and link.src in task.lanes:
                task.lanes[link.src].heard = True
            self._send_on(back)
        if frame < 0:
            return
        if task is not None:
            self._take(task, link.src, num_bytes)
            return
        aside = self.aside.setdefault((link.src, rank), {})
        aside[c] = aside.get(c, 0) + num_bytes
        self.most_aside = max(self.most_aside, sum(aside.values()))

    def _take(self, task: _Task, peer: int, num_bytes: int) -> None:
        table = task.table
        receives = table.receives[peer]
        while num_bytes:
            j = receives[task.received[peer]]
            taken = min(num_bytes, table.num_bytes[j] - task.done[j])
            if task.done[j] + taken == table.num_bytes[j]:
                task.received[peer] += 1
            num_bytes -= taken
            self._do(task, j, taken)

    def _do(self, task: _Task, j: int, num_bytes: int) -> None:
        """So many bytes more of an instruction are done; go on with what follows it."""
        table, done = task.table, task.done
        done[j] += num_bytes
        task.left -= num_bytes
        for k in table.followers[j]:
            if not table.local[k]:
                self._send_on(self._link(task.rank, table.peer[k]))
                continue
            limit = min(done[i] - start for i, start in table.follows[k])
            more = min(limit, table.num_bytes[k]) - done[k]
            if more > 0:
                self._do(task, k, more)
        if not task.left:
            self._end(task)

    def _end(self, task: _Task) -> None:
        if (task.rank, task.c) in self.ended:
            return
        self.ended[task.rank, task.c] = self.now
        if not self.rules.preempts:
            for peer in range(len(self.places)):
                if (task.rank, peer) in self.links:
                    self._send_on(self.links[task.rank, peer])
        self._call_on(task.rank)
