"""Who is left: how survivors agree, as a pure machine of events and instructions.

    propose  say (epoch, lost) to all survivors; take the largest epoch and the union
             of the lost sets of all that is heard, and say it again if that changed it
    advance  once all survivors have said the same
    finish   once all survivors have advanced

Whoever finishes knows that all survivors began the same epoch with the same members.
If one dies meanwhile, those that had not finished propose a later epoch without it; the
others learn of the death from their own link, and join when they re-form in turn.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True)
class Proposal:
    """Begin an epoch without some peers: all that were ever lost.

    (Were they those of the last epoch only, two ranks that are not in the same epoch
    yet would mean different members by it.)
    """

    epoch: int
    lost: frozenset[int]


@dataclass(frozen=True)
class Propose:
    """Say a proposal to all survivors in it."""

    proposal: Proposal


@dataclass(frozen=True)
class Advance:
    """Begin the epoch, then say so to all survivors."""

    proposal: Proposal


@dataclass(frozen=True)
class Finish:
    """All survivors are in the new epoch."""


@dataclass(frozen=True)
class Excluded:
    """Another rank holds this one for lost."""

    by: int


Instruction: TypeAlias = Propose | Advance | Finish | Excluded


class Phase(Enum):
    """What a rank is waiting for."""

    IDLE = 0
    PROPOSING = 1
    ADVANCED = 2


class Agreement:
    """One peer's side of it.

    Args:
        me: this peer.
        members: all peers, itself included.
    """

    def __init__(self, me: int, members: frozenset[int]) -> None:
        self.phase = Phase.IDLE
        self.epoch = 0
        self.members = members
        self._me = me
        self._dead: frozenset[int] = frozenset()
        self._mine = Proposal(0, frozenset())
        self._heard: dict[int, Proposal] = {}
        self._advanced: dict[int, int] = {}

    @property
    def missing(self) -> frozenset[int]:
        """Who is waited for."""
        others = self.members - self._mine.lost - {self._me}
        if self.phase is Phase.PROPOSING:
            return frozenset(p for p in others if self._heard.get(p) != self._mine)
        if self.phase is Phase.ADVANCED:
            return frozenset(p for p in others if self._advanced.get(p) != self.epoch)
        return frozenset()

    @property
    def ahead(self) -> frozenset[int]:
        """Peers that already want the epoch after this one."""
        return frozenset(self._heard) if self.phase is Phase.IDLE else frozenset()

    def begin(self) -> list[Instruction]:
        """This rank wants a new epoch."""
        return self._propose()

    def give_up(self) -> None:
        """This rank waits no longer."""
        self.phase = Phase.IDLE

    def on_proposal(self, peer: int, proposal: Proposal) -> list[Instruction]:
        """A peer has said a proposal."""
        if peer not in self.members or peer in self._dead:
            return []
        if self._me in proposal.lost:
            return [Excluded(peer)]
        self._heard[peer] = proposal
        if self.phase is Phase.PROPOSING:
            return self._merge()
        late = self._advanced.get(peer) != self.epoch and proposal != self._mine
        if self.phase is Phase.ADVANCED and late:
            # It will not come to this epoch. (One that has come, and proposes the next
            # already, is heard when this rank begins that.)
            return self._propose()
        return []

    def on_advanced(self, peer: int, epoch: int) -> list[Instruction]:
        """A peer has begun an epoch."""
        self._advanced[peer] = epoch
        return self._step()

    def on_lost(self, peer: int) -> list[Instruction]:
        """The link to a peer has ended."""
        self._dead |= {peer}
        if peer not in self.members or peer in self._mine.lost:
            return []
        if self.phase is Phase.PROPOSING:
            return self._merge()
        if self.phase is Phase.ADVANCED and self._advanced.get(peer) != self.epoch:
            return self._propose()
        return []

    def _propose(self) -> list[Instruction]:
        self.phase = Phase.PROPOSING
        self._mine = self._joined(Proposal(self.epoch + 1, self._mine.lost))
        return [Propose(self._mine), *self._step()]

    def _merge(self) -> list[Instruction]:
        joined = self._joined(self._mine)
        if joined == self._mine:
            return self._step()
        self._mine = joined
        return [Propose(joined), *self._step()]

    def _joined(self, mine: Proposal) -> Proposal:
        heard = [p for peer, p in self._heard.items() if peer not in self._dead]
        lost = frozenset().union(self._dead, *(p.lost for p in heard))
        epochs = [p.epoch for p in heard]
        return Proposal(max([mine.epoch, *epochs]), mine.lost | lost)

    def _step(self) -> list[Instruction]:
        done: list[Instruction] = []
        if self.phase is Phase.PROPOSING and not self.missing:
            self.phase, self.epoch = Phase.ADVANCED, self._mine.epoch
            done.append(Advance(self._mine))
        if self.phase is Phase.ADVANCED and not self.missing:
            self.phase = Phase.IDLE
            self.members -= self._mine.lost
            self._heard = {
                peer: said
                for peer, said in self._heard.items()
                if peer in self.members and said.epoch > self.epoch
            }
            done.append(Finish())
        return done
