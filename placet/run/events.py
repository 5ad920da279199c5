"""What the executor tells its observer: which node fired when, and what it moved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class NodeFired:
    """A node of the program ran on this rank.

    Args:
        lane: "compute", "move", "update", "load" or "save".
        start_seconds, end_seconds: on the rank's monotonic clock; a boxing starts when
            it is submitted and ends when its result is taken.
        waited_seconds: how much of that the rank stood still for it.
        sent_bytes, received_bytes: of a boxing, as the wire counted them.
        predicted_sent_bytes, predicted_received_bytes: as its moves said before.
    """

    step: int
    name: str
    lane: str
    start_seconds: float
    end_seconds: float
    waited_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    predicted_sent_bytes: int = 0
    predicted_received_bytes: int = 0


Observer: TypeAlias = Callable[[NodeFired], None]


def ignore(event: NodeFired) -> None:
    """The observer of a job that nobody watches."""
