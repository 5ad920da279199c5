"""The memory that a walk through a step holds, by use, and the most at once.

    held = sum over storages that live of their bytes         -> Account, Storage

A storage counts from when it is made until its last reference is gone, as memory does.
"""

from collections.abc import Mapping

PARAMETERS, BUFFERS, OPTIMIZER = "parameters", "buffers", "optimizer state"
BATCH, ACTIVATIONS, GRADIENTS = "batch", "activations", "gradients"
GATHERED, BOXINGS = "gathered weights", "boxings in flight"
WORKSPACE, RANDOM = "workspace", "random numbers"

CATEGORIES = (
    *(PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER, BATCH, ACTIVATIONS),
    *(GATHERED, BOXINGS, WORKSPACE, RANDOM),
)
"""What memory is used for, in the order in which people are shown it."""


class Account:
    """Bytes that are held now, and the most that were.

    Attributes:
        place: where the walk is, for `peak_place`.
        peak_bytes, peak_place, peak_live: the most, where that was, and its use.
    """

    def __init__(self) -> None:
        self.place = ""
        self.peak_bytes = 0
        self.peak_place = ""
        self.peak_live: Mapping[str, int] = {}
        self._live = dict.fromkeys(CATEGORIES, 0)
        self._total = 0

    def add(self, category: str, num_bytes: int) -> None:
        """Hold more of something; negative gives it back."""
        self._live[category] += num_bytes
        self._total += num_bytes
        if self._total > self.peak_bytes:
            self.peak_bytes, self.peak_place = self._total, self.place
            self.peak_live = dict(self._live)

    def pass_by(self, category: str, num_bytes: int) -> None:
        """Hold something for a moment."""
        self.add(category, num_bytes)
        self.add(category, -num_bytes)

    def move(self, src: str, dst: str, num_bytes: int) -> None:
        """Count what is held as something else."""
        self._live[src] -= num_bytes
        self._live[dst] += num_bytes


class Storage:
    """Memory that counts as long as somebody refers to it."""

    __slots__ = ("account", "category", "num_bytes")

    def __init__(self, account: Account, category: str, num_bytes: int) -> None:
        self.account, self.category, self.num_bytes = account, category, num_bytes
        account.add(category, num_bytes)

    def become(self, category: str) -> None:
        """Count as something else from now on."""
        self.account.move(self.category, category, self.num_bytes)
        self.category = category

    def __del__(self) -> None:
        self.account.add(self.category, -self.num_bytes)
