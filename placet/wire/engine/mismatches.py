"""Members disagree on a collective: gather what each submitted, then fail it.

The rank whose core meets bytes that do not fit tells the members what it submitted
itself. Each member that has submitted the collective tells the same of itself. All
raise when they have heard everyone, or after 0.3 s: one that has not submitted it has
nothing to say, and fails when it does.

Only the attendant calls these, so nothing here is locked.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from placet.errors import MoveMismatch, WireError
from placet.wire.engine.futures import EngineFuture
from placet.wire.engine.inflight import InFlight
from placet.wire.engine.keys import full_text, scope_of, short_texts
from placet.wire.engine.messages import SUBMITTED, Submitted, pack_value
from placet.wire.engine.prepared import Prepared
from placet.wire.engine.reporting import write_record

GATHER_SECONDS = 0.3

Broken: TypeAlias = Callable[[int, bytes, WireError], None]


@dataclass
class _Gathering:
    """What is known of a collective that members disagree on.

    Args:
        about: which it is, as the first who said so sees it.
        until: when those who said nothing are waited for no more.
        texts: what each rank submitted.
        cause: how the core put it; empty where another rank noticed.
    """

    about: Submitted
    until: float
    texts: dict[int, str] = field(default_factory=dict)
    cause: str = ""


class Mismatches:
    """The collectives of this rank that members disagree on.

    Args:
        inflight: the table of futures.
        broken: told that a rank submits nothing more in a scope, with the error.
    """

    def __init__(self, inflight: InFlight, broken: Broken) -> None:
        self._inflight = inflight
        self._broken = broken
        self._open: dict[int, _Gathering] = {}

    def noticed(self, future: EngineFuture, cause: str) -> None:
        """The core met bytes that do not fit."""
        about = self._submission(future.collective, future.key, future.prepared)
        self._gathering(about).cause = cause

    def told(self, rank: int, about: Submitted) -> None:
        """Another member says what it submitted."""
        if about.epoch == self._inflight.epoch and self._inflight.rank in about.group:
            self._gathering(about).texts[rank] = about.text

    def raise_ripe(self) -> float:
        """Fail what is known well enough; seconds until the next will be."""
        now = time.monotonic()
        for number, open_ in list(self._open.items()):
            if open_.about.epoch != self._inflight.epoch:
                del self._open[number]
            elif now >= open_.until or set(open_.about.group) <= set(open_.texts):
                self._say_own(open_)
                del self._open[number]
                self._raise(open_)
        return min((open_.until - now for open_ in self._open.values()), default=1.0)

    def _gathering(self, about: Submitted) -> _Gathering:
        new = _Gathering(about, time.monotonic() + GATHER_SECONDS)
        open_ = self._open.setdefault(about.collective, new)
        self._say_own(open_)
        return open_

    def _say_own(self, open_: _Gathering) -> None:
        inflight, number = self._inflight, open_.about.collective
        found = inflight.submitted(number)
        if found is None or inflight.rank in open_.texts:
            return
        mine = self._submission(number, *found)
        open_.texts[inflight.rank] = mine.text
        inflight.send_all(mine.group, SUBMITTED, pack_value(mine))

    def _submission(self, number: int, key: str, prepared: Prepared) -> Submitted:
        return Submitted(
            self._inflight.epoch,
            number,
            key,
            prepared.move.group,
            prepared.control,
            full_text(prepared.move),
        )

    def _raise(self, open_: _Gathering) -> None:
        about, inflight = open_.about, self._inflight
        error = MoveMismatch(_text(open_))
        scope = scope_of(about.group, control=about.control)
        inflight.break_group(about.epoch, scope, error)
        for rank in about.group:
            self._broken(rank, scope, error)
        future = inflight.find(about.collective)
        if future is None:
            inflight.fail_early(about.epoch, about.collective, error)
            return
        inflight.fail(future, error)
        write_record(inflight)


def _text(open_: _Gathering) -> str:
    ranks_of: dict[str, list[int]] = {}
    texts = dict(sorted(open_.texts.items()))
    for rank, text in zip(texts, short_texts(list(texts.values())), strict=True):
        ranks_of.setdefault(text, []).append(rank)
    said = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} submitted "
        f"{text}"
        for text, ranks in ranks_of.items()
    ]
    members = ", ".join(map(str, open_.about.group))
    silent = [r for r in open_.about.group if r not in open_.texts]
    if len(ranks_of) < 2 and silent:
        said.append(f"rank {', '.join(map(str, silent))} did not say what it did")
    # The core's words are numbers: of use only where those of the ranks say nothing.
    cause = f" ({open_.cause})" if open_.cause and len(ranks_of) < 2 else ""
    return (
        f"key {open_.about.key!r} over ranks {members}: {'; '.join(said)}{cause}; "
        "submit the same move on all members, or use different keys"
    )
