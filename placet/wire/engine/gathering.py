"""All connections of one rank's meeting, made at the same time in one loop.

No connection waits for another: a stranger who is silent, or slow, costs the others
nothing, and is dropped after `GRACE_SECONDS`.
"""

import os
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from placet.wire.engine.handshake import (
    WELCOME,
    Caller,
    Read,
    Refused,
    Side,
    Write,
    call,
    listen,
)
from placet.wire.engine.listening import Address, dial, make_memory

GRACE_SECONDS = 2.0
"""A caller has so long for its proof. A rank that was slower calls again."""

AGAIN_SECONDS = 0.05
"""A call that failed is made again after so long."""

MOST_CALLERS = 256
"""So many callers may be unproved at a time; then the oldest is dropped."""

CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

Slot = tuple[int, int]
"""A connection to be made: the peer, and which of the pair's sockets."""


@dataclass(frozen=True)
class Door:
    """A listener, and who may call there.

    Args:
        listener: a listening socket that does not block.
        expected: the ranks that may call, and how many sockets each has.
    """

    listener: socket.socket
    expected: Mapping[int, int]


@dataclass(frozen=True)
class Plan:
    """What one rank has to do to meet the others.

    Args:
        rank: this rank.
        token: the secret of all ranks.
        doors: where lower ranks wait for higher ones.
        calls: the connections that this rank makes, and to where.
        memory_bytes: for each peer to share memory with, the size of each direction's.
    """

    rank: int
    token: bytes
    doors: tuple[Door, ...]
    calls: Mapping[Caller, Address]
    memory_bytes: Mapping[int, int]

    def slots(self) -> set[Slot]:
        """All connections that there will be."""
        theirs = {
            (peer, index)
            for door in self.doors
            for peer, num_sockets in door.expected.items()
            for index in range(num_sockets)
        }
        return theirs | {(caller.dst, caller.index) for caller in self.calls}


@dataclass(frozen=True)
class Proved:
    """A connection whose two ends have proved who they are.

    Args:
        sock: the connected socket; it does not block.
        memory: two descriptors, of what the lower rank sends and of what the higher
            one does; empty for none.
    """

    sock: socket.socket
    memory: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the socket and the memory."""
        self.sock.close()
        for descriptor in self.memory:
            os.close(descriptor)


@dataclass
class Gathered:
    """How far a meeting is.

    Args:
        proved: the connections that are there.
        num_refused: callers that were dropped.
        refusal: why the last of them was.
        reasons: for each peer that was called in vain, why it last came to nothing.
    """

    proved: dict[Slot, Proved] = field(default_factory=dict)
    num_refused: int = 0
    refusal: str = ""
    reasons: dict[int, str] = field(default_factory=dict)

    def close(self) -> None:
        """Close all connections."""
        for proved in self.proved.values():
            proved.close()


@dataclass(eq=False)
class _Talk:
    """A handshake under way over one socket."""

    sock: socket.socket
    side: Side
    calling: Caller | None
    until: float
    want: Read | Write
    done: bytearray = field(default_factory=bytearray)
    memory: list[int] = field(default_factory=list)

    def events(self) -> int:
        """What the selector should wait for."""
        reads = isinstance(self.want, Read)
        return selectors.EVENT_READ if reads else selectors.EVENT_WRITE

    def close(self) -> None:
        """End it."""
        self.side.close()
        Proved(self.sock, tuple(self.memory)).close()


def gather(plan: Plan, until: float, state: Gathered) -> bool:
    """Make all connections of a plan; False if time ran out first.

    Args:
        plan: what to do; its doors' listeners stay open.
        until: the deadline, on `time.monotonic`.
        state: filled on the way; whatever happens, it is the caller's to close.
    """
    slots = plan.slots()
    with selectors.DefaultSelector() as selector:
        loop = _Loop(plan, until, state, selector)
        try:
            for door in plan.doors:
                selector.register(door.listener, selectors.EVENT_READ, door)
            while state.proved.keys() != slots:
                if time.monotonic() >= until:
                    return False
                loop.call_again()
                loop.drop_late()
                for key, _ in selector.select(loop.seconds_left()):
                    if isinstance(key.data, Door):
                        loop.accept(key.data)
                    elif key.data in loop.talks:
                        loop.go_on(key.data)
        finally:
            for talk in loop.talks:
                talk.close()
    return True


class _Loop:
    """The handshakes under way, and the calls to be made again."""

    def __init__(
        self,
        plan: Plan,
        until: float,
        state: Gathered,
        selector: selectors.BaseSelector,
    ) -> None:
        self.plan = plan
        self.until = until
        self.state = state
        self.selector = selector
        self.talks: dict[_Talk, None] = {}  # in the order they began
        self.again = dict.fromkeys(plan.calls, 0.0)  # when to call

    def seconds_left(self) -> float:
        """How long there is nothing to do, unless something comes."""
        ends = (talk.until for talk in self.talks)
        first = min((self.until, *self.again.values(), *ends))
        return max(0.0, first - time.monotonic())

    def call_again(self) -> None:
        """Make the calls that are due."""
        now = time.monotonic()
        for caller in [c for c, when in self.again.items() if when <= now]:
            del self.again[caller]
            try:
                sock = dial(self.plan.calls[caller])
            except OSError as error:
                self.failed(caller, error)
                continue
            # The listener may not look at us before it has heard of all ranks, so
            # there is no other deadline than that of the meeting.
            self.begin(sock, call(self.plan.token, caller), caller, self.until)

    def accept(self, door: Door) -> None:
        """Let in all who wait at a door."""
        for _ in range(MOST_CALLERS):
            try:
                sock, _ = door.listener.accept()
            except (BlockingIOError, ConnectionError):
                return  # none waits, or it has gone already
            sock.setblocking(False)
            side = listen(self.plan.token, self.plan.rank, door.expected)
            self.begin(sock, side, None, time.monotonic() + GRACE_SECONDS)

    def begin(
        self, sock: socket.socket, side: Side, calling: Caller | None, until: float
    ) -> None:
        """Begin a handshake."""
        talk = _Talk(sock, side, calling, until, next(side))
        self.talks[talk] = None
        self.selector.register(sock, talk.events(), talk)

    def drop_late(self) -> None:
        """Drop callers who did not prove who they are in time, or are too many."""
        callers = [talk for talk in self.talks if talk.calling is None]
        too_many, now = len(callers) - MOST_CALLERS, time.monotonic()
        for position, talk in enumerate(callers):
            if talk.until <= now or position < too_many:
                self.forget(talk)
                talk.close()
                self.failed(None, Refused("no proof in time"))

    def forget(self, talk: _Talk) -> None:
        """Take a handshake out of the loop."""
        self.selector.unregister(talk.sock)
        del self.talks[talk]

    def failed(self, calling: Caller | None, error: Exception) -> None:
        """Note why a handshake came to nothing; a call is made again."""
        if calling is None:
            self.state.num_refused += 1
            self.state.refusal = str(error)
        else:
            self.state.reasons[calling.dst] = str(error)
            self.again[calling] = time.monotonic() + AGAIN_SECONDS

    def go_on(self, talk: _Talk) -> None:
        """Go on with one handshake as far as it goes without waiting."""
        before = talk.events()
        try:
            caller = _advance(talk)
            proved = None if caller is None else _prove(self.plan, talk, caller)
        except (OSError, Refused) as error:
            self.forget(talk)
            talk.close()
            self.failed(talk.calling, error)
            return
        if caller is None or proved is None:
            if talk.events() != before:
                self.selector.modify(talk.sock, talk.events(), talk)
            return
        self.forget(talk)
        slot = (caller.src if talk.calling is None else caller.dst, caller.index)
        if slot in self.state.proved:  # it called again: the first connection broke
            self.state.proved.pop(slot).close()
        self.state.proved[slot] = proved


def _advance(talk: _Talk) -> Caller | None:
    """Read and write until it must wait (None) or is at its end (who it is)."""
    with suppress(BlockingIOError):
        while True:
            if isinstance(talk.want, Write):
                left = talk.want.data[len(talk.done) :]
                talk.done += left[: talk.sock.send(left)]
                if len(talk.done) < len(talk.want.data):
                    continue
                given = b""
            else:
                missing = talk.want.num_bytes - len(talk.done)
                talk.done += _receive(talk, missing)
                if len(talk.done) < talk.want.num_bytes:
                    continue
                given = bytes(talk.done)
            talk.done.clear()
            try:
                talk.want = talk.side.send(given)
            except StopIteration as end:
                caller: Caller = end.value
                return caller
    return None


def _receive(talk: _Talk, num_bytes: int) -> bytes:
    # Exactly what is asked for: what follows the handshake belongs to the core.
    if talk.calling is None or talk.sock.family != socket.AF_UNIX:
        data = talk.sock.recv(num_bytes)
    else:
        data, memory, _, _ = socket.recv_fds(talk.sock, num_bytes, 2, CLOSE_ON_EXEC)
        talk.memory += memory
    if not data:
        raise Refused("hung up before the end of the handshake")
    return data


def _prove(plan: Plan, talk: _Talk, caller: Caller) -> Proved:
    """The connection, with its memory: made and sent here by the lower rank."""
    peer = caller.src if talk.calling is None else caller.dst
    num_bytes = plan.memory_bytes.get(peer, 0)
    if talk.calling is None:
        for _ in range(2 if num_bytes else 0):
            talk.memory.append(make_memory(num_bytes))
        if talk.memory:
            num_sent = socket.send_fds(talk.sock, [WELCOME], talk.memory)
        else:
            num_sent = talk.sock.send(WELCOME)
        if num_sent < len(WELCOME):
            raise Refused("no room for a few bytes of welcome")
    sizes = [os.fstat(descriptor).st_size for descriptor in talk.memory]
    if sizes != [num_bytes] * (2 if num_bytes else 0):
        raise Refused(f"memory of sizes {sizes} came, {num_bytes} bytes were agreed")
    return Proved(talk.sock, tuple(talk.memory))


def missing(plan: Plan, state: Gathered) -> Iterator[str]:
    """For each rank that is not there: what is known of it."""
    left = plan.slots() - state.proved.keys()
    called = {caller.dst for caller in plan.calls}
    for peer in sorted({peer for peer, _ in left}):
        num_left = sum(1 for other, _ in left if other == peer)
        num_all = sum(1 for other, _ in plan.slots() if other == peer)
        part = "" if num_all == 1 else f" ({num_all - num_left} of {num_all} sockets)"
        if peer in called:
            why = state.reasons.get(peer, "it did not answer")
            yield f"no way to rank {peer}{part}: {why}"
        else:
            yield (
                f"nothing from rank {peer}{part} (published its address, never "
                "connected)"
            )
    if state.num_refused:
        yield f"refused {state.num_refused} callers, the last: {state.refusal}"
