"""Cores in one process, raw peers that speak frames, and small schedules for them."""

import contextlib
import select
import socket
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from placet.wire.engine.core import Core, Event, EventKind, Link, State, Task
from placet.wire.engine.frames import HEADER, FrameKind, Header, pack, unpack
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule

MakeCore = Callable[[int, Sequence[Link]], Core]
"""A core from its own number and its links."""

LONG = 20.0
"""Seconds after which a test has failed: far more than anything here takes."""

SHORT = 0.05
"""Seconds in which nothing must come."""

FINGERPRINT = 0xF1


@contextlib.contextmanager
def connected(
    make_core: MakeCore, num_cores: int, num_sockets: int = 1
) -> Iterator[list[Core]]:
    """Cores 0, 1, ..., each linked to all others."""
    links: list[list[Link]] = [[] for _ in range(num_cores)]
    for i in range(num_cores):
        for j in range(i):
            ours, theirs = socket_pairs(num_sockets)
            links[i].append(Link(j, ours))
            links[j].append(Link(i, theirs))
    cores = [make_core(i, links[i]) for i in range(num_cores)]
    try:
        yield cores
    finally:
        for core in cores:
            core.close()


@contextlib.contextmanager
def beside_raw(
    make_core: MakeCore, num_sockets: int = 1
) -> Iterator[tuple[Core, "RawPeer"]]:
    """Core 0, and peer 1, of which the test plays every byte."""
    ours, theirs = socket_pairs(num_sockets)
    core, raw = make_core(0, [Link(1, ours)]), RawPeer(theirs)
    try:
        yield core, raw
    finally:
        raw.close()
        core.close()


@contextlib.contextmanager
def beside_raw_and_core(
    make_core: MakeCore, num_sockets: int = 1
) -> Iterator[tuple[Core, "RawPeer", Core]]:
    """Core 0, its peer 1, played by the test, and its peer 2, a core."""
    ours, theirs = socket_pairs(num_sockets)
    our_end, its_end = socket_pairs(num_sockets)
    core = make_core(0, [Link(1, ours), Link(2, our_end)])
    raw, other = RawPeer(theirs), make_core(2, [Link(0, its_end)])
    try:
        yield core, raw, other
    finally:
        raw.close()
        core.close()
        other.close()


def socket_pairs(
    num: int,
) -> tuple[tuple[socket.socket, ...], tuple[socket.socket, ...]]:
    """Connected stream sockets: one side's, the other side's."""
    pairs = [socket.socketpair() for _ in range(num)]
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


class RawPeer:
    """The other end of a core's link; reads and writes frames, in order, blocking."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.sockets = list(sockets)
        self._num_read = self._num_sent = 0

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send a frame."""
        connection = self.sockets[self._num_sent % len(self.sockets)]
        connection.sendall(pack(header) + body)
        self._num_sent += 1

    def ready(self, collective: int, epoch: int = 0) -> None:
        """Say READY."""
        self.send(Header(FrameKind.READY, epoch, collective, FINGERPRINT))

    def data(
        self,
        collective: int,
        body: bytes,
        *,
        start: int = 0,
        lane_bytes: int = 0,
        epoch: int = 0,
        fingerprint: int = FINGERPRINT,
    ) -> None:
        """Send a DATA frame; of a whole lane if `lane_bytes` is left out."""
        lane_bytes = lane_bytes or len(body)
        header = Header(
            FrameKind.DATA,
            epoch,
            collective,
            fingerprint,
            start,
            lane_bytes,
            len(body),
        )
        self.send(header, body)

    def read(self, seconds: float = LONG) -> tuple[Header, bytes] | None:
        """The next frame; None if none begins within the time, or at the end."""
        connection = self.sockets[self._num_read % len(self.sockets)]
        if not select.select([connection], [], [], seconds)[0]:
            return None
        head = self._read_bytes(connection, HEADER.size)
        if len(head) < HEADER.size:
            return None
        header = unpack(head)
        self._num_read += 1
        return header, self._read_bytes(connection, header.num_bytes)

    def read_all(self, seconds: float = SHORT) -> list[tuple[Header, bytes]]:
        """All frames until none comes for so long."""
        frames = []
        while (frame := self.read(seconds)) is not None:
            frames.append(frame)
        return frames

    def has_something(self) -> None:
        """Wait until a frame begins to come."""
        connection = self.sockets[self._num_read % len(self.sockets)]
        assert select.select([connection], [], [], LONG)[0]

    def close(self) -> None:
        """Go without a word."""
        for connection in self.sockets:
            connection.close()

    def _read_bytes(self, connection: socket.socket, num_bytes: int) -> bytes:
        connection.settimeout(LONG)
        parts, left = [], num_bytes
        while left:
            part = connection.recv(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def schedule_of(
    *instructions: Instruction,
    dtype: torch.dtype = torch.uint8,
    scratch_bytes: int = 0,
    reduction: str = "sum",
) -> Schedule:
    """A schedule of elements of a dtype."""
    return Schedule(
        tuple(x for x in instructions if x.num_bytes),
        scratch_bytes,
        dtype.itemsize,
        str(dtype),
        reduction,  # type: ignore[arg-type]
    )


def sending(peer: int, num_bytes: int, start: int = 0) -> Instruction:
    """Send bytes of the payload."""
    place = Place(Buffer.PAYLOAD, start)
    return Instruction(Kind.SEND, num_bytes, peer, src=place)


def receiving(peer: int, num_bytes: int, start: int = 0) -> Instruction:
    """Receive bytes into the result."""
    place = Place(Buffer.OUT, start)
    return Instruction(Kind.RECEIVE, num_bytes, peer, dst=place)


def sum_of_all(me: int, group: Sequence[int], payload: Tensor) -> Schedule:
    """Everyone sends everyone its payload; results add up in the group's order.

    The result may lie where the payload does: it is written when the payload is sent.
    """
    num_bytes = payload.numel() * payload.itemsize
    others = [rank for rank in group if rank != me]
    where = {me: Place(Buffer.PAYLOAD, 0)}
    program = [sending(peer, num_bytes) for peer in others]
    for slot, peer in enumerate(others):
        where[peer] = Place(Buffer.SCRATCH, slot * num_bytes)
        program.append(Instruction(Kind.RECEIVE, num_bytes, peer, dst=where[peer]))
    follows = tuple((i, 0) for i in range(len(program)))
    total = Place(Buffer.SCRATCH, len(others) * num_bytes)
    src = where[group[0]]
    for rank in group[1:]:
        program.append(
            Instruction(Kind.REDUCE, num_bytes, -1, src, total, where[rank], follows)
        )
        src, follows = total, ((len(program) - 1, 0),)
    out = Place(Buffer.OUT, 0)
    program.append(Instruction(Kind.COPY, num_bytes, -1, src, out, follows=follows))
    return schedule_of(
        *program, dtype=payload.dtype, scratch_bytes=len(group) * num_bytes
    )


def submit(
    core: Core,
    collective: int,
    schedule: Schedule,
    payload: Tensor,
    out: Tensor | None = None,
    **others: int,
) -> int:
    """Submit a task; its fingerprint is FINGERPRINT unless given."""
    out = payload if out is None else out
    fingerprint = others.pop("fingerprint", FINGERPRINT)
    priority, notify = others.pop("priority", 0), bool(others.pop("notify", 0))
    assert not others
    task = Task(collective, fingerprint, schedule, payload, out, priority, notify)
    return core.submit(task)


def assert_done(core: Core, *handles: int) -> None:
    """Wait for tasks that must succeed."""
    for handle in handles:
        assert core.wait(handle, LONG) is State.DONE
        core.release(handle)


def event_of(core: Core, kind: EventKind) -> Event:
    """The next event, which must be of this kind."""
    event = core.next_event(LONG)
    assert event is not None
    assert event.kind is kind, event
    return event


def talk(core: Core, raw: RawPeer) -> None:
    """Wait until the core has read all that the raw peer has sent."""
    raw.send(Header(FrameKind.CONTROL, 0))
    event_of(core, EventKind.MESSAGE)


def random_bytes(num_bytes: int, seed: int = 0) -> Tensor:
    """Bytes to send, always the same."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=generator)


def raw_bytes(tensor: Tensor) -> bytes:
    """What a tensor holds."""
    return tensor.view(torch.uint8).numpy().tobytes()
