"""How long a step takes when boxings run beside computing.

Two lanes, one of computing and one of the links:

    Compute(s)      the computing lane works for s seconds, in order
    Submit(k, s)    the links have s more seconds to work for boxing k; they work for
                    the most urgent, of equals for the oldest, and turn to a more
                    urgent one at once                                 -> _Links
    Wait(k)         the computing lane stands still until boxing k is done, which is
                    its latency after the links' work for it

    step = when both lanes are done          -> predict

>>> predict([Submit("g2", 2.0), Compute(3.0), Wait("g2")]).seconds
3.0
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias


@dataclass(frozen=True)
class Compute:
    """Work of the computing lane."""

    seconds: float


@dataclass(frozen=True)
class Submit:
    """A boxing that the links shall work for.

    Args:
        seconds: of the links' work.
        priority: larger goes first.
        latency_seconds: how much later it is done; the links are free then.
    """

    key: str
    seconds: float
    priority: int = 0
    latency_seconds: float = 0.0


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
        link_seconds: of the links' work, latencies not counted.
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
    now, computing = 0.0, 0.0
    links = _Links()
    for event in events:
        match event:
            case Compute(seconds):
                now += seconds
                computing += seconds
            case Submit():
                links.submit(event, now)
            case Wait(key):
                now = max(now, links.done(key))
    end = max([now, *map(links.done, list(links.known))])
    moving = sum(submitted.seconds for submitted in links.known.values())
    return Timeline(end, computing, moving)


class _Links:
    """The lane of the links, up to where somebody has asked."""

    def __init__(self) -> None:
        self.known: dict[str, Submit] = {}
        self._left: dict[str, float] = {}  # the links' work, of those not done
        self._queue: list[tuple[int, int, str]] = []  # (-priority, number, key)
        self._ended: dict[str, float] = {}
        self._now = 0.0

    def submit(self, given: Submit, now: float) -> None:
        """A boxing is there from now on; `now` never goes back."""
        if given.key in self.known:
            raise ValueError(f"boxing {given.key!r} is submitted twice in one step")
        while self._queue and self._now < now:
            self._work(now)
        self._now = max(self._now, now)
        heappush(self._queue, (-given.priority, len(self.known), given.key))
        self.known[given.key] = given
        self._left[given.key] = given.seconds

    def done(self, key: str) -> float:
        """When a boxing is done, if nothing more is submitted before."""
        if key not in self.known:
            raise ValueError(f"boxing {key!r} is waited for, never submitted")
        while key not in self._ended:
            self._work(math.inf)
        return self._ended[key] + self.known[key].latency_seconds

    def _work(self, until: float) -> None:
        """For the most urgent boxing, until it ends or time is over."""
        _, _, key = self._queue[0]
        took = min(self._left[key], until - self._now)
        self._now += took
        self._left[key] -= took
        if self._left[key] <= 0:
            heappop(self._queue)
            self._ended[key] = self._now
