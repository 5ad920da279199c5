"""The ledger: three accounts in which every byte of a job stands.

boxings   moves that boxings lowered to; predicted == recorded, exactly
control   framing, store traffic, probes: bounded and printed
foreign   others' code: checkpoints, c10d calls that are not ours
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One move of one boxing on this rank.

    Args:
        boxing: the boxing's name, as printed in the plan.
        step: the training step it belonged to.
        predicted_sent_bytes, predicted_received_bytes: from the move, before it ran.
        sent_bytes, received_bytes: what the wire counted.
        start_seconds, end_seconds: on this rank's monotonic clock.
    """

    boxing: str
    step: int
    predicted_sent_bytes: int
    predicted_received_bytes: int
    sent_bytes: int
    received_bytes: int
    start_seconds: float
    end_seconds: float


@dataclass
class Ledger:
    """What this rank sent and received, by account."""

    entries: list[Entry] = field(default_factory=list)
    control_bytes: Counter[str] = field(default_factory=Counter)
    foreign_bytes: Counter[str] = field(default_factory=Counter)

    def record(self, entry: Entry) -> None:
        """Write one move down."""
        self.entries.append(entry)

    def mismatches(self) -> list[Entry]:
        """Entries whose recorded bytes are not the predicted ones (should be none)."""
        return [
            e
            for e in self.entries
            if (e.sent_bytes, e.received_bytes)
            != (e.predicted_sent_bytes, e.predicted_received_bytes)
        ]

    def boxing_bytes(self) -> int:
        """Bytes sent and received by all boxings so far."""
        return sum(e.sent_bytes + e.received_bytes for e in self.entries)
