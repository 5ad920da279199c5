"""A schedule's instructions turned over: who follows whom, and what each peer gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from placet.wire.engine.schedule import Instruction, Kind


@dataclass(frozen=True)
class Table:
    """One rank's schedule, by instruction and by peer.

    Args:
        num_bytes, peer, follows: of each instruction, as it has them.
        local: of each, whether it is neither a send nor a receive.
        followers: of each, those that follow it.
        sends, receives: of each peer, the instructions of its lane, in order.
    """

    num_bytes: tuple[int, ...]
    peer: tuple[int, ...]
    follows: tuple[tuple[tuple[int, int], ...], ...]
    local: tuple[bool, ...]
    followers: tuple[tuple[int, ...], ...]
    sends: dict[int, tuple[int, ...]]
    receives: dict[int, tuple[int, ...]]

    @property
    def peers(self) -> set[int]:
        """All that it sends to or receives from."""
        return {*self.sends, *self.receives}

    def between(self, group: Sequence[int]) -> "Table":
        """The same between other ranks: peer i becomes group[i]."""
        return Table(
            self.num_bytes,
            tuple(group[peer] if peer >= 0 else -1 for peer in self.peer),
            self.follows,
            self.local,
            self.followers,
            {group[peer]: lane for peer, lane in self.sends.items()},
            {group[peer]: lane for peer, lane in self.receives.items()},
        )


@lru_cache(maxsize=1 << 14)
def table_of(instructions: tuple[Instruction, ...]) -> Table:
    """The table of a schedule.

    Raises:
        ValueError: a receive follows something; see schedule.py's note.
    """
    sends: dict[int, tuple[int, ...]] = {}
    receives: dict[int, tuple[int, ...]] = {}
    followers: list[list[int]] = [[] for _ in instructions]
    for j, i in enumerate(instructions):
        if i.kind is Kind.SEND:
            sends[i.peer] = (*sends.get(i.peer, ()), j)
        elif i.kind in (Kind.RECEIVE, Kind.RECEIVE_REDUCE):
            receives[i.peer] = (*receives.get(i.peer, ()), j)
            if i.follows:
                raise ValueError(f"instruction {j} receives, yet follows {i.follows}")
        for k, _ in i.follows:
            followers[k].append(j)
    return Table(
        num_bytes=tuple(i.num_bytes for i in instructions),
        peer=tuple(i.peer for i in instructions),
        follows=tuple(i.follows for i in instructions),
        local=tuple(i.kind in (Kind.REDUCE, Kind.COPY) for i in instructions),
        followers=tuple(map(tuple, followers)),
        sends=sends,
        receives=receives,
    )
