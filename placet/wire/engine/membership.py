"""Re-form the group in place: survivors agree who is left, and number themselves anew.

    wire.reform()       on every survivor, after PeerLost (or after any failure)

What `agreement` decides is carried out here: messages, the core's new epoch, the ranks'
new numbers. All of it runs in the attendant as messages come; the caller only waits.
"""

import json
import time
from collections.abc import Callable
from threading import Condition, RLock

from placet.errors import PeerLost, WireError, WireTimeout
from placet.wire.engine.agreement import (
    Advance,
    Agreement,
    Excluded,
    Finish,
    Instruction,
    Proposal,
    Propose,
)
from placet.wire.engine.inflight import InFlight
from placet.wire.engine.messages import ADVANCED, PROPOSE, pack_message
from placet.wire.engine.reporting import write_record

REFORMING = "the ranks are being re-formed; wait for reform()"

AGAIN = "it re-forms the group; call reform() on all survivors"


class Membership:
    """This rank's side of re-forming.

    Args:
        inflight: the table of moves, which the new epoch empties.
    """

    def __init__(self, inflight: InFlight) -> None:
        self._inflight = inflight
        self._renewed: Callable[[], None] = _nothing
        self._agreement = Agreement(inflight.me, frozenset(inflight.peers))
        self._changed = Condition(RLock())
        self._running = False
        self._error: WireError | None = None

    def on_renewed(self, renewed: Callable[[], None]) -> None:
        """Call back in each new epoch, before any other rank can use it."""
        self._renewed = renewed

    def reform(self, timeout_seconds: float) -> None:
        """Agree with all survivors on a new epoch; see `EngineWire.reform`."""
        inflight = self._inflight
        started = time.monotonic()
        with self._changed:
            if self._running:
                raise WireError("reform() is under way in another thread")
            inflight.check_usable("reform()")
            self._running, self._error = True, None
        try:
            inflight.refuse(REFORMING)
            self._abandon()
            with self._changed:
                self._carry_out(self._agreement.begin())
                self._changed.wait_for(self._is_over, timeout_seconds)
                if self._running and self._error is None:
                    waited = time.monotonic() - started
                    self._error = self._late(self._agreement.missing, waited)
        finally:
            with self._changed:
                self._running = False
                self._agreement.give_up()
                for peer in self._agreement.ahead:
                    inflight.doubt(inflight.peers.index(peer), AGAIN)
            inflight.allow(REFORMING)
        inflight.record.note("reform", epoch=inflight.epoch, rank=inflight.rank)
        if self._error is not None:
            write_record(inflight)
            raise self._error

    def on_proposal(self, peer: int, data: bytes) -> int | None:
        """A peer proposes.

        Returns:
            Where this rank is not re-forming itself, the epoch that the peer has left.
        """
        epoch, lost = json.loads(data)
        proposal = Proposal(int(epoch), frozenset(map(int, lost)))
        with self._changed:
            self._carry_out(self._agreement.on_proposal(peer, proposal))
            if self._running or peer not in self._inflight.peers:
                return None
            # Under the lock: once this rank re-forms, the peer is no more in doubt.
            self._inflight.doubt(self._inflight.peers.index(peer), AGAIN)
            return self._inflight.epoch

    def on_advanced(self, peer: int, data: bytes) -> None:
        """A peer is in a new epoch."""
        with self._changed:
            self._carry_out(self._agreement.on_advanced(peer, int(data)))

    def on_lost(self, peer: int) -> None:
        """The link to a peer has ended."""
        with self._changed:
            self._carry_out(self._agreement.on_lost(peer))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Propose(proposal):
                    said = json.dumps([proposal.epoch, sorted(proposal.lost)])
                    self._say(PROPOSE, said.encode(), proposal)
                case Advance(proposal):
                    left = self._left(proposal)
                    self._inflight.renew(proposal.epoch, left)
                    self._renewed()
                    self._say(ADVANCED, b"%d" % proposal.epoch, proposal)
                case Finish():
                    self._running = False
                    self._changed.notify_all()
                case Excluded(by):
                    self._error = PeerLost(
                        f"peer {by} holds this rank for lost and re-forms the group "
                        "without it; start this rank anew"
                    )
                    self._changed.notify_all()

    def _say(self, topic: str, data: bytes, proposal: Proposal) -> None:
        message = pack_message(topic, data)
        for peer in self._left(proposal):
            if peer != self._inflight.me:
                self._inflight.core.send(peer, message)

    def _left(self, proposal: Proposal) -> tuple[int, ...]:
        return tuple(p for p in self._inflight.peers if p not in proposal.lost)

    def _is_over(self) -> bool:
        return not self._running or self._error is not None

    def _late(self, missing: frozenset[int], waited: float) -> WireError:
        peers = self._inflight.peers
        ranks = ", ".join(str(peers.index(p)) for p in sorted(missing) if p in peers)
        return WireTimeout(
            f"reform(): waited {waited:.3g} s for rank {ranks}, which is connected but "
            "did not call reform(): call it on all survivors, or end that process"
        )

    def _abandon(self) -> None:
        """Fail what is in flight, here and, as they would wait in vain, elsewhere."""
        inflight = self._inflight
        lost = ", ".join(map(str, sorted(inflight.lost)))
        why = f" without rank {lost}" if lost else ""
        kind = PeerLost if lost else WireError
        for future in inflight.alive():
            text = f"{future.what}: rank {inflight.rank} re-forms the group{why}"
            error = kind(f"{text}; call reform() on all survivors")
            if inflight.fail(future, error):
                inflight.tell_members(future, error)
            elif future.error is None:
                inflight.succeed(future)


def _nothing() -> None:
    """Until the wire has said what to call."""
