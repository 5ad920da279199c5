"""The seam between boxings and whatever carries their bytes.

A wire takes moves and gives futures; it never decides what moves. There are three: the
twin (all ranks in one process), the engine (cannot deadlock, has priorities) and c10d
(any torch process group).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from placet.boxing.moves import Move
from placet.placement.cluster import Cluster


@dataclass(frozen=True)
class Capabilities:
    """What a wire can promise.

    Args:
        order_free: ranks may submit moves of one group in different orders.
        priorities: a later move of higher priority may overtake an earlier one.
    """

    order_free: bool
    priorities: bool


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank really sent and received for one move."""

    sent_bytes: int
    received_bytes: int


class Future(ABC):
    """The result of a move, some time later."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""

    @abstractmethod
    def wait(self) -> Tensor:
        """The result, flat.

        Raises:
            WireTimeout: the deadline passed; names the key and who is missing.
            PeerLost: a member of the group is gone.
        """

    @abstractmethod
    def traffic(self) -> Traffic:
        """Bytes sent and received, once done."""


class Wire(ABC):
    """Carries moves between the ranks of a job.

    Args:
        rank, num_ranks: this rank, and how many there are.
        capabilities: what it can promise.
        cluster: the links between ranks, by which moves are to choose their algorithm
            before they are submitted; None where the wire has only one for each.
    """

    rank: int
    num_ranks: int
    capabilities: Capabilities
    cluster: Cluster | None

    @abstractmethod
    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> Future:
        """Start a move; every member of its group submits it under the same key.

        Args:
            move: what to do.
            payload: this rank's flat contiguous elements; not to be touched until done.
            key: names the move; equal on all members, different for different moves.
            priority: larger goes first, where the wire can.
            out: where the result goes; may be `payload` itself for an all-reduce.

        Raises:
            ValueError: the payload does not fit the move.
        """

    @abstractmethod
    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Ready the groups of later moves; every rank passes the same ones.

        Without it the first move of a group may block in `submit` until all its
        members have come.
        """

    @abstractmethod
    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        """Give each rank a few bytes of every rank (control account; blocks)."""

    @abstractmethod
    def control_bytes(self) -> int:
        """The control account so far, both ways, on this rank.

        What it gave and took in `exchange`, and bounds on the headers of its moves and
        on what the start took.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish what is in flight and let go of all resources."""
