"""What came before its time, and the bound on it, on both sides of a link.

A sender may send a little of a collective before it knows that the receiver has
submitted it (`Account`); the receiver sets that aside (`Early`). Both count alike, so a
frame above the bound is a broken peer's.
"""

from dataclasses import dataclass, field

from placet.wire.engine.frames import EAGER_BYTES, EARLY_BYTES, BadFrame, Header

MARKS = EARLY_BYTES // 4
"""So many collectives a peer may be ahead: as many as 4-byte lanes fit EARLY_BYTES."""


@dataclass
class EarlyLane:
    """Bytes of a lane of a collective that is not submitted here yet."""

    fingerprint: int
    lane_bytes: int
    data: bytearray = field(default_factory=bytearray)


class Early:
    """What one peer sent in one epoch of collectives not submitted here yet."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.num_bytes = 0
        self._lanes: dict[int, EarlyLane] = {}
        self._ready: dict[int, int] = {}

    def add_data(self, header: Header, data: memoryview) -> None:
        """Set a DATA frame aside.

        Raises:
            BadFrame: it breaks a rule; says which.
        """
        lane = self._lanes.get(header.collective)
        if lane is None:
            _check_marks(self._lanes)
            lane = EarlyLane(header.fingerprint, header.lane_bytes)
        check_continues(
            header, lane.fingerprint, lane.lane_bytes, moved_bytes=len(lane.data)
        )
        if len(lane.data) + len(data) > EAGER_BYTES:
            raise BadFrame(
                f"{len(lane.data) + len(data)} bytes of one lane before READY, at most"
                f" {EAGER_BYTES}"
            )
        if self.num_bytes + len(data) > EARLY_BYTES:
            raise BadFrame(
                f"{self.num_bytes + len(data)} bytes in all before READY, at most"
                f" {EARLY_BYTES}"
            )
        self._lanes[header.collective] = lane
        self.num_bytes += len(data)
        lane.data += data

    def add_ready(self, header: Header) -> None:
        """Remember that the peer has submitted a collective.

        Raises:
            BadFrame: it is too far ahead.
        """
        _check_marks(self._ready)
        self._ready[header.collective] = header.fingerprint

    def take_data(self, collective: int) -> EarlyLane | None:
        """What came of a collective that is submitted now."""
        lane = self._lanes.pop(collective, None)
        if lane is not None:
            self.num_bytes -= len(lane.data)
        return lane

    def take_ready(self, collective: int) -> int | None:
        """The fingerprint in the READY that came for a collective submitted now."""
        return self._ready.pop(collective, None)


class Account:
    """What we sent one peer of collectives of which we have not heard from it.

    # NOTE [When a READY is remembered]
    A rank that receives from us sends READY at most once for a collective, and never
    after data of it. So a READY that comes when we are done with a collective, and had
    not heard of it, finds an entry here: the receiver waits for a lane of ours, all of
    which went unheard. Without an entry, and not submitted here, the collective is one
    that we have still to submit: that READY is remembered. (Failed ones are known
    apart, until the epoch ends.)
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._sent: dict[int, int] = {}

    def room(self, collective: int) -> int:
        """Bytes of it that may still go unheard."""
        if collective not in self._sent and len(self._sent) >= MARKS:
            return 0
        lane = EAGER_BYTES - self._sent.get(collective, 0)
        return min(lane, EARLY_BYTES - self.num_bytes)

    def add(self, collective: int, num_bytes: int) -> None:
        """So much of it was sent unheard."""
        self._sent[collective] = self._sent.get(collective, 0) + num_bytes
        self.num_bytes += num_bytes

    def give_back(self, collective: int) -> bool:
        """The peer has submitted it; whether something of it was sent unheard."""
        num_bytes = self._sent.pop(collective, None)
        self.num_bytes -= num_bytes or 0
        return num_bytes is not None


def check_continues(
    header: Header, fingerprint: int, lane_bytes: int, *, moved_bytes: int
) -> None:
    """Raise unless a DATA frame goes on where its lane stands.

    Raises:
        BadFrame: it does not.
    """
    if header.num_bytes == 0:
        raise BadFrame("a DATA frame of no bytes")
    if header.start != moved_bytes:
        raise BadFrame(f"bytes from {header.start} of a lane that is at {moved_bytes}")
    if header.fingerprint != fingerprint or header.lane_bytes != lane_bytes:
        raise BadFrame(
            f"a lane of {header.lane_bytes} bytes and fingerprint"
            f" {header.fingerprint:#x} that began with {lane_bytes} bytes and"
            f" {fingerprint:#x}"
        )


def _check_marks(marks: dict[int, int] | dict[int, EarlyLane]) -> None:
    if len(marks) >= MARKS:
        raise BadFrame(f"more than {MARKS} collectives ahead")
