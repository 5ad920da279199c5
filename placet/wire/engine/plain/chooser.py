"""Who may send next on a link.

The most urgent task goes first; among equals the one of which the peer has just sent
data, for the peer works on it now; then the oldest. Every 16th slice goes to the oldest
whatever its priority, so that none starves.

Source: OCCL (arXiv:2303.06324), stickiness adjustment; differs in that there is no
    spin threshold: a link always knows at once what it can send.
"""

from collections.abc import Iterable

from placet.wire.engine.plain.tasks import Running

AGING_SLICES = 16


def choose(
    candidates: Iterable[Running], *, num_slices: int, sticky: int
) -> Running | None:
    """The task whose slice goes next.

    Args:
        candidates: tasks that have something to send, oldest first.
        num_slices: sent on this link so far.
        sticky: the collective of which the peer sent data last.
    """
    best: Running | None = None
    oldest_whatever = num_slices % AGING_SLICES == AGING_SLICES - 1
    for running in candidates:
        if oldest_whatever:
            return running
        if best is None or _rank(running, sticky) > _rank(best, sticky):
            best = running
    return best


def _rank(running: Running, sticky: int) -> tuple[int, bool]:
    return running.priority, running.collective == sticky
