"""The engine's protocol as states and steps, one slice of a collective at a time.

    State             all ranks and all channels between them, at one moment
    Model.steps       every next state: a rank calls on, sends a slice or a READY, takes
                      a frame off a channel, takes what was set aside, or reduces
    Protocol          its rules as a value; each mutant below differs in one of them

Between each two ranks there is a channel in either direction: first in, first out, full
after so many frames. Instructions are the engine's own, with one byte for a slice.

See docs/decisions/0011 for what the rules are and why they cannot deadlock, and
testing/wire_model/explore.py for how all interleavings are searched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from placet.wire.engine.schedule import Instruction, Kind
from testing.wire_model.cases import Case


@dataclass(frozen=True)
class Protocol:
    """The rules.

    Args:
        channel: frames that a channel holds.
        eager: slices of a lane that may be sent before its receiver has said READY ...
        early: ... and of all lanes of a pair; so many a receiver can set aside.
        clear_to_send: senders heed `eager` and `early`.
        own_places: what is set aside for one collective stands behind no other's.
        preempts: a rank works on all its collectives, not on its oldest alone.
        receives_freely: a receive waits for nothing; else for the send of its step.
    """

    channel: int = 1
    eager: int = 1
    early: int = 1
    clear_to_send: bool = True
    own_places: bool = True
    preempts: bool = True
    receives_freely: bool = True


PROTOCOL = Protocol()
SHARED_CREDITS = replace(PROTOCOL, clear_to_send=False)
SHARED_BUFFER = replace(PROTOCOL, own_places=False)
NO_PREEMPTION = replace(PROTOCOL, preempts=False)
SEND_THEN_RECEIVE = replace(PROTOCOL, receives_freely=False)
"""Deadlocks once a step's chunk is more than the channel and its receiver hold."""


class State(NamedTuple):
    """All that can differ between two moments.

    Args:
        places: of each rank, how many calls it got through.
        done: of each instruction (of all ranks and collectives), slices done.
        owed: (pair, collective) whose READY is still to be sent on that pair.
        heard: (pair, collective) whose READY has come for what is sent on that pair.
        channels: of each pair, frames in it: c for a slice of collective c, ~c for its
            READY.
        aside: of each rank, (pair, collective) of slices set aside, oldest first.
    """

    places: tuple[int, ...]
    done: tuple[int, ...]
    owed: frozenset[tuple[int, int]]
    heard: frozenset[tuple[int, int]]
    channels: tuple[tuple[int, ...], ...]
    aside: tuple[tuple[tuple[int, int], ...], ...]


class Step(NamedTuple):
    """One thing that can happen: what, and the state after it."""

    what: str
    state: State


class Model:
    """A case, its schedules and the rules; all in tables, as searches ask often.

    Args:
        case: who calls what.
        schedules: of each rank and collective that it is a member of, what it does.
        protocol: the rules.
    """

    def __init__(
        self,
        case: Case,
        schedules: dict[tuple[int, int], tuple[Instruction, ...]],
        protocol: Protocol = PROTOCOL,
    ) -> None:
        self.case = case
        self.protocol = protocol
        self.instructions: list[Instruction] = []
        self.follows: list[tuple[tuple[int, int], ...]] = []
        self.range_of: dict[tuple[int, int], range] = {}
        for key, schedule in schedules.items():
            first = len(self.instructions)
            self.instructions += schedule
            self.range_of[key] = range(first, len(self.instructions))
            for i in schedule:
                self.follows.append(tuple((first + j, start) for j, start in i.follows))
        ways = {
            (rank, i.peer)
            for (rank, _), schedule in schedules.items()
            for i in schedule
            if i.peer >= 0
        }
        self.pairs = sorted(ways | {(dst, src) for src, dst in ways})
        self.pair_of = {pair: p for p, pair in enumerate(self.pairs)}
        self.submits_at = [
            {call: place for place, call in enumerate(calls) if call >= 0}
            for calls in case.calls
        ]
        self._find_lanes()

    def _find_lanes(self) -> None:
        # A lane is what one collective moves over one pair.
        self.sends: dict[tuple[int, int], list[int]] = {}
        self.receives: dict[tuple[int, int], list[int]] = {}
        self.local: list[tuple[int, int, int]] = []
        for (rank, c), numbers in self.range_of.items():
            for j in numbers:
                i = self.instructions[j]
                if i.kind is Kind.SEND:
                    lane = self.pair_of[rank, i.peer], c
                    self.sends.setdefault(lane, []).append(j)
                elif i.kind in (Kind.RECEIVE, Kind.RECEIVE_REDUCE):
                    lane = self.pair_of[i.peer, rank], c
                    self.receives.setdefault(lane, []).append(j)
                else:
                    self.local.append((rank, c, j))
        self.back = [self.pair_of[dst, src] for src, dst in self.pairs]

    def start(self) -> State:
        """Nothing has been called."""
        return State(
            places=(0,) * self.case.num_ranks,
            done=(0,) * len(self.instructions),
            owed=frozenset(),
            heard=frozenset(),
            channels=((),) * len(self.pairs),
            aside=((),) * self.case.num_ranks,
        )

    def complete(self, state: State) -> bool:
        """Whether every rank got through its calls and every collective ended."""
        return all(
            place == len(calls)
            for place, calls in zip(state.places, self.case.calls, strict=True)
        ) and all(
            done == i.num_bytes
            for done, i in zip(state.done, self.instructions, strict=True)
        )

    def steps(self, state: State) -> Iterator[Step]:
        """Every next state."""
        yield from self.certain(state)
        yield from self.ready_sends(state)
        yield from self.slice_sends(state, heard=True)
        yield from self.slice_sends(state, heard=False)
        yield from self.submissions(state)

    def certain(self, state: State) -> Iterator[Step]:
        """A rank takes in a frame, or what is aside, or reduces, or ends a wait."""
        for pair, frames in enumerate(state.channels):
            if frames:
                yield from self._receive(state, pair, frames[0])
        for rank, aside in enumerate(state.aside):
            for lane in dict.fromkeys(aside):
                if self._may_take(state, rank, lane) and (
                    self.protocol.own_places or lane == aside[0]
                ):
                    rest = list(aside)
                    rest.remove(lane)
                    taken = state._replace(aside=_with(state.aside, rank, tuple(rest)))
                    step = f"rank {rank} takes a slice of {lane[1]} from aside"
                    yield Step(step, self._taken(taken, lane))
        for rank, c, j in self.local:
            if self._works_on(state, rank, c) and self._may_do(state, j):
                yield Step(f"rank {rank} reduces for {c}", _more(state, j))
        for rank, place in enumerate(state.places):
            calls = self.case.calls[rank]
            if place < len(calls) and calls[place] < 0:
                c = ~calls[place]
                if self._finished(state, rank, c):
                    places = _with(state.places, rank, place + 1)
                    step = f"rank {rank} has waited for {c}"
                    yield Step(step, state._replace(places=places))

    def submissions(self, state: State) -> Iterator[Step]:
        """Ranks submit the next collective; READY is owed to all who send for it."""
        for rank, place in enumerate(state.places):
            calls = self.case.calls[rank]
            if place < len(calls) and calls[place] >= 0:
                c = calls[place]
                owed = {
                    (self.back[pair], c)
                    for pair, other in self.receives
                    if other == c and self.pairs[pair][1] == rank
                }
                after = state._replace(
                    places=_with(state.places, rank, place + 1), owed=state.owed | owed
                )
                yield Step(f"rank {rank} submits {c}", after)

    def ready_sends(self, state: State) -> Iterator[Step]:
        """A READY goes into a channel with room."""
        for pair, c in state.owed:
            if len(state.channels[pair]) < self.protocol.channel:
                after = state._replace(owed=state.owed - {(pair, c)})
                src, dst = self.pairs[pair]
                yield Step(f"{src} to {dst}: READY {c}", self._put(after, pair, ~c))

    def slice_sends(self, state: State, *, heard: bool) -> Iterator[Step]:
        """A slice goes into a channel with room.

        Args:
            state: the state before.
            heard: those whose receiver is known to have submitted, or the others.
        """
        for lane, numbers in self.sends.items():
            pair, c = lane
            src, dst = self.pairs[pair]
            if (lane in state.heard) != heard or not self._works_on(state, src, c):
                continue
            if len(state.channels[pair]) >= self.protocol.channel:
                continue
            if self.protocol.clear_to_send and not heard:
                sent = self._sent(state, lane)
                if sent >= self.protocol.eager or (
                    self._unheard(state, pair) >= self.protocol.early
                ):
                    continue
            j = self._next(state, numbers)
            if j is not None and self._may_do(state, j):
                after = self._put(_more(state, j), pair, c)
                yield Step(f"{src} to {dst}: a slice of {c}", after)

    def _receive(self, state: State, pair: int, frame: int) -> Iterator[Step]:
        src, rank = self.pairs[pair]
        c = frame if frame >= 0 else ~frame
        channels = _with(state.channels, pair, state.channels[pair][1:])
        after = state._replace(channels=channels)
        answer = self.back[pair], c
        if answer in self.sends and answer not in after.heard:
            after = after._replace(heard=after.heard | {answer})
        if frame < 0:
            yield Step(f"rank {rank} hears READY {c} of {src}", after)
            return
        aside = state.aside[rank]
        lane = pair, c
        may_pass = self.protocol.own_places or not aside
        if self._may_take(state, rank, lane) and may_pass:
            step = f"rank {rank} receives a slice of {c}"
            yield Step(step, self._taken(after, lane))
        elif sum(p == pair for p, _ in aside) < self.protocol.early:
            after = after._replace(aside=_with(after.aside, rank, (*aside, lane)))
            yield Step(f"rank {rank} sets a slice of {c} aside", after)

    def _submitted(self, state: State, rank: int, c: int) -> bool:
        place = self.submits_at[rank].get(c)
        return place is not None and state.places[rank] > place

    def _finished(self, state: State, rank: int, c: int) -> bool:
        return all(
            state.done[j] == self.instructions[j].num_bytes
            for j in self.range_of[rank, c]
        ) and self._submitted(state, rank, c)

    def _works_on(self, state: State, rank: int, c: int) -> bool:
        if self.protocol.preempts or not self._submitted(state, rank, c):
            return self._submitted(state, rank, c)
        begun = [x for x in self.case.calls[rank][: state.places[rank]] if x >= 0]
        return c == next((x for x in begun if not self._finished(state, rank, x)), -1)

    def _may_take(self, state: State, rank: int, lane: tuple[int, int]) -> bool:
        if not self._works_on(state, rank, lane[1]):
            return False
        if self.protocol.receives_freely:
            return True
        j = self._next(state, self.receives[lane])
        before = [k for k in self.range_of[rank, lane[1]] if j is not None and k < j]
        sends = [k for k in before if self.instructions[k].kind is Kind.SEND]
        return all(state.done[k] == self.instructions[k].num_bytes for k in sends)

    def _may_do(self, state: State, j: int) -> bool:
        done = state.done[j]
        return done < self.instructions[j].num_bytes and all(
            done < state.done[k] - start for k, start in self.follows[j]
        )

    def _next(self, state: State, numbers: list[int]) -> int | None:
        for j in numbers:
            if state.done[j] < self.instructions[j].num_bytes:
                return j
        return None

    def _sent(self, state: State, lane: tuple[int, int]) -> int:
        return sum(state.done[j] for j in self.sends[lane])

    def _unheard(self, state: State, pair: int) -> int:
        return sum(
            self._sent(state, lane)
            for lane in self.sends
            if lane[0] == pair and lane not in state.heard
        )

    def _taken(self, state: State, lane: tuple[int, int]) -> State:
        j = self._next(state, self.receives[lane])
        assert j is not None, f"more slices than the receiver of {lane} asked for"
        return _more(state, j)

    def _put(self, state: State, pair: int, frame: int) -> State:
        frames = (*state.channels[pair], frame)
        return state._replace(channels=_with(state.channels, pair, frames))


def _more(state: State, j: int) -> State:
    return state._replace(done=_with(state.done, j, state.done[j] + 1))


def _with(values: tuple, place: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:place], value, *values[place + 1 :])
