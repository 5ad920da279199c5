"""How long a step takes when boxings run beside computing.

Two lanes, one of computing and one of the links, each in order:

    Compute(s)      the computing lane works for s seconds
    Submit(k, s)    boxing k begins when it is submitted and the links are free
    Wait(k)         the computing lane stands still until boxing k is done

    step = when both lanes are done          -> predict

>>> predict([Submit("g2", 2.0), Compute(3.0), Wait("g2")]).seconds
3.0
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Compute:
    """Work of the computing lane."""

    seconds: float


@dataclass(frozen=True)
class Submit:
    """A boxing that begins once the links have done those before it."""

    key: str
    seconds: float


@dataclass(frozen=True)
class Wait:
    """What follows reads a boxing's result."""

    key: str


Event: TypeAlias = Compute | Submit | Wait


@dataclass(frozen=True)
class Timeline:
    """A predicted step.

    Args:
        seconds: of the whole step.
        compute_seconds: of the computing lane's work.
        link_seconds: of the links' work.
    """

    seconds: float
    compute_seconds: float
    link_seconds: float

    @property
    def waited_seconds(self) -> float:
        """What boxings add to computing: their part that nothing hides."""
        return self.seconds - self.compute_seconds


def predict(events: Iterable[Event]) -> Timeline:
    """The time of a step's events, in the order in which a rank comes to them.

    Raises:
        ValueError: a boxing submitted twice, or waited for and never submitted.
    """
    now, links_free, computing, moving = 0.0, 0.0, 0.0, 0.0
    done: dict[str, float] = {}
    for event in events:
        match event:
            case Compute(seconds):
                now += seconds
                computing += seconds
            case Submit(key, seconds):
                if key in done:
                    raise ValueError(f"boxing {key!r} is submitted twice in one step")
                links_free = max(now, links_free) + seconds
                moving += seconds
                done[key] = links_free
            case Wait(key):
                if key not in done:
                    raise ValueError(f"boxing {key!r} is waited for, never submitted")
                now = max(now, done[key])
    return Timeline(max(now, links_free), computing, moving)
