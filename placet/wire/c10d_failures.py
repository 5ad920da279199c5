"""Why a move on c10d failed: who waited, who did not come, who died.

gloo only says "timed out" or "connection closed". When a move fails, a rank publishes
in the store what it waited for and what else it had submitted, and gives the others a
moment to do the same. Nothing of this runs while moves succeed.
"""

import json
import time
from dataclasses import asdict, dataclass, replace

from placet.errors import MoveMismatch, PeerLost, WireError, WireTimeout
from placet.torch_private.c10d import Store

REPORT_SECONDS = 1.0
_POLL_SECONDS = 0.02

_KINDS: dict[str, type[WireError]] = {
    kind.__name__: kind for kind in (MoveMismatch, PeerLost, WireTimeout)
}


@dataclass(frozen=True)
class Report:
    """What a rank says when a move of its own failed.

    Args:
        kind: the error it is about to raise.
        waited_for: the key that failed.
        submitted: all keys it had submitted and not seen done.
        why: a sentence, for a mismatch.
    """

    kind: str
    waited_for: str
    submitted: tuple[str, ...]
    why: str = ""


def diagnose(
    cause: str,
    what: str,
    *,
    key: str,
    group: tuple[int, ...],
    rank: int,
    submitted: tuple[str, ...],
    seconds: float,
    store: Store,
) -> WireError:
    """The error to raise for a failed move, naming all that is known.

    Args:
        cause: what the backend said.
        what: the move, in one line.
        key: its key.
        group: its members.
        rank: this rank.
        submitted: keys this rank has in flight.
        seconds: how long this rank waited.
        store: where ranks leave their reports.
    """
    timed_out = "timed out" in cause.lower() or "timeout" in cause.lower()
    mine = Report("WireTimeout" if timed_out else "PeerLost", key, submitted)
    try:
        found = _trade_reports(mine, group, rank, store)
    except RuntimeError as error:
        text = f"{what}: {cause}; and the store is gone: {error}"
        return _KINDS[mine.kind](text)
    for report in found.values():
        if report.kind == "MoveMismatch":
            return MoveMismatch(report.why)
    first_timeout = any(r.kind == "WireTimeout" for r in found.values())
    if timed_out or first_timeout:
        return WireTimeout(_who_is_late(what, key, group, rank, found, seconds))
    silent = [r for r in group if r != rank and r not in found]
    if silent:
        gone = ", ".join(f"rank {r}" for r in silent)
        return PeerLost(f"{what}: {gone} is gone, the connection closed ({cause})")
    return PeerLost(f"{what}: a connection closed ({cause})")


def report_mismatch(
    why: str, *, key: str, rank: int, submitted: tuple[str, ...], store: Store
) -> MoveMismatch:
    """Tell the others that this rank found a mismatch, and give the error to raise."""
    _publish(Report("MoveMismatch", key, submitted, why), rank, store)
    return MoveMismatch(why)


def mismatch_of_others(group: tuple[int, ...], store: Store) -> str | None:
    """What a member of the group said about a mismatch, if any did."""
    for report in _published(group, store).values():
        if report.kind == "MoveMismatch":
            return report.why
    return None


def _trade_reports(
    mine: Report, group: tuple[int, ...], rank: int, store: Store
) -> dict[int, Report]:
    _publish(mine, rank, store)
    others = tuple(r for r in group if r != rank)
    deadline = time.monotonic() + REPORT_SECONDS
    while True:
        found = _published(others, store)
        if len(found) == len(others) or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_SECONDS)


def _publish(report: Report, rank: int, store: Store) -> None:
    store.set(f"report/{rank}", json.dumps(asdict(report)))


def _published(ranks: tuple[int, ...], store: Store) -> dict[int, Report]:
    found = {}
    for rank in ranks:
        name = f"report/{rank}"
        if store.check([name]):
            report = Report(**json.loads(store.get(name)))
            found[rank] = replace(report, submitted=tuple(report.submitted))
    return found


def _who_is_late(
    what: str,
    key: str,
    group: tuple[int, ...],
    rank: int,
    found: dict[int, Report],
    seconds: float,
) -> str:
    there = [rank, *(r for r, report in found.items() if key in report.submitted)]
    late = []
    for other in group:
        if other in there:
            continue
        report = found.get(other)
        late.append(
            f"rank {other}, silent for {REPORT_SECONDS:g} s: computing, stuck or dead"
            if report is None
            else f"rank {other}, which waited for {report.waited_for!r}"
        )
    ranks = ", ".join(map(str, sorted(there)))
    missing = "; ".join(late) or "nobody: all came, but too slowly"
    return (
        f"{what}: rank {rank} waited {seconds:.3g} s; submitted by ranks {ranks}; "
        f"not by {missing}"
    )
