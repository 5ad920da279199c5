"""The ledger: three accounts in which every byte of a job stands.

boxings   moves that boxings lowered to; predicted == recorded, exactly
control   framing, store traffic, probes: bounded and printed
foreign   others' code: checkpoints' messages, c10d calls that are not ours

Files stand beside them: they cross a network card only where their folder is remote.
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

    @property
    def is_as_predicted(self) -> bool:
        """Whether the wire counted just what the move's formulas say."""
        return (self.sent_bytes, self.received_bytes) == (
            self.predicted_sent_bytes,
            self.predicted_received_bytes,
        )


@dataclass
class Ledger:
    """What this rank sent and received, by account.

    Entries are kept until their step ends and then added up, so that a long job's
    ledger stays small; an entry whose bytes were not as predicted is kept for ever.
    """

    entries: list[Entry] = field(default_factory=list)
    mismatched: list[Entry] = field(default_factory=list)
    sent_bytes: int = 0
    received_bytes: int = 0
    control_bytes: Counter[str] = field(default_factory=Counter)
    foreign_bytes: Counter[str] = field(default_factory=Counter)
    file_bytes: int = 0

    def record(self, entry: Entry) -> None:
        """Write one boxing down."""
        self.entries.append(entry)
        self.sent_bytes += entry.sent_bytes
        self.received_bytes += entry.received_bytes
        if not entry.is_as_predicted:
            self.mismatched.append(entry)

    def end_step(self) -> tuple[int, int]:
        """Bytes sent and received by boxings since the last step's end."""
        ended, self.entries = self.entries, []
        sent = sum(e.sent_bytes for e in ended)
        return sent, sum(e.received_bytes for e in ended)

    def accounts(self) -> dict[str, int]:
        """Bytes sent and received in all, by account; and those written to files."""
        return {
            "boxings": self.sent_bytes + self.received_bytes,
            "control": self.control_bytes.total(),
            "foreign": self.foreign_bytes.total(),
            "files": self.file_bytes,
        }
