"""What a rank says of itself: to others that ask, and to the flight record."""

import time
from dataclasses import asdict

from placet.wire.engine.core import State
from placet.wire.engine.diagnose import PendingMove, Report
from placet.wire.engine.flight import Noted, flight_name
from placet.wire.engine.inflight import InFlight
from placet.wire.engine.keys import full_text


def report_of(inflight: InFlight) -> Report:
    """What is pending on this rank, what it waits for, and what it did last."""
    now, submitted = time.monotonic(), inflight.record.last(Noted.SUBMIT)
    pending, waited = [], []
    with inflight.lock:
        rank_of = {peer: rank for rank, peer in enumerate(inflight.peers)}
        for future in inflight.alive():
            if inflight.core.state(future.handle) is not State.PENDING:
                continue
            peers = inflight.core.heard(future.handle)
            heard = tuple(sorted(rank_of[p] for p in peers if p in rank_of))
            text, age = full_text(future.prepared.move), now - future.submitted
            pending.append(PendingMove(future.key, future.group, text, age, heard))
            if future.waiters:
                waited.append(future)
        waited.sort(key=lambda future: future.waiting_since)
        first = waited[0] if waited else None
        return Report(
            rank=inflight.rank,
            pending=tuple(pending),
            waiting_for_key=first.key if first else None,
            waiting_for_group=first.group if first else None,
            finished=tuple(key for _, key, _ in inflight.finished),
            waiting_seconds=now - first.waiting_since if first else None,
            finished_seconds=now - inflight.finished_at if inflight.finished else None,
            submitted_seconds=None if submitted is None else now - submitted,
        )


def write_record(inflight: InFlight) -> None:
    """Write the flight record, where a folder is known."""
    if inflight.report_folder is None:
        return
    path = inflight.report_folder / flight_name(inflight.rank)
    report = asdict(report_of(inflight))
    num_ranks = len(inflight.peers)
    try:
        inflight.record.write(
            path, rank=inflight.rank, num_ranks=num_ranks, report=report
        )
    except OSError as error:
        # The failure itself matters more than its record; the next one tells.
        inflight.record.note("unwritten", text=str(error))
