"""Rank 0's part of order agreement: hears announcements, tells launches.

It joins the pure `Sequencer` to the control wire. It is called by the control wire's
thread (what others say), by threads that submit on rank 0, and by rank 0's launcher.
"""

from collections.abc import Callable
from threading import Lock
from typing import TypeAlias

from placet.errors import WireError
from placet.wire.engine.wire import EngineWire
from placet.wire.ordered_messages import (
    FAIL,
    LAUNCH,
    TO_SEQUENCER,
    Announce,
    Define,
    Done,
    Expire,
    Said,
    pack_failure,
    pack_numbers,
    unpack,
)
from placet.wire.sequencer import Announcement, Failure, Sequencer, launch_numbers

Deliver: TypeAlias = Callable[[str, bytes], None]

CONDUCTOR = 0
"""The rank that orders all launches."""


class Conductor:
    """Runs the sequencer of a job, on `CONDUCTOR`.

    Args:
        control: carries what is said.
        deliver: takes what the conductor says to its own rank, as (topic, message).
    """

    def __init__(self, control: EngineWire, deliver: Deliver) -> None:
        self._control = control
        self._deliver = deliver
        self._sequencer = Sequencer()
        self._defined: dict[tuple[int, int], Define] = {}
        # Held while messages go out: each rank must get its launches in order.
        self._lock = Lock()
        control.listen(TO_SEQUENCER, lambda rank, data: self.hear(rank, unpack(data)))

    @property
    def idle(self) -> bool:
        """Whether nobody waits for a launch."""
        return self._sequencer.idle

    def hear(self, rank: int, said: Said) -> None:
        """Take what a rank says, and tell the members what follows from it."""
        with self._lock:
            failures: list[Failure] = []
            match said:
                case Define():
                    self._defined[rank, said.name] = said
                    return
                case Announce():
                    failures = self._sequencer.announce(self._announced(rank, said))
                case Done():
                    self._sequencer.done(rank, said.number)
                case Expire():
                    failures = self._sequencer.expire(rank, said.number, said.seconds)
            self._tell(failures)

    def lose(self, rank: int, cause: str) -> None:
        """A rank takes no part any more."""
        with self._lock:
            self._tell(self._sequencer.lose(rank, cause))

    def _announced(self, rank: int, said: Announce) -> Announcement:
        defined = self._defined[rank, said.name]
        return Announcement(
            rank,
            said.number,
            defined.group,
            defined.key,
            defined.text,
            defined.fingerprint,
            said.priority,
            defined.num_chunks,
        )

    def _tell(self, failures: list[Failure]) -> None:
        for failure in failures:
            for rank, number in failure.numbers:
                self._say(rank, FAIL, pack_failure(number, failure.kind, failure.text))
        launches = self._sequencer.launches()
        for rank in sorted({r for launch in launches for r, _ in launch.numbers}):
            numbers = launch_numbers(launches, rank)
            self._say(rank, LAUNCH, pack_numbers(numbers))

    def _say(self, rank: int, topic: str, message: bytes) -> None:
        if rank == CONDUCTOR:
            self._deliver(topic, message)
            return
        try:
            self._control.tell(rank, topic, message)
        except WireError:
            # The control wire is closed or broken: each rank sees that for itself.
            return
