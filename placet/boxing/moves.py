"""Moves: the transfers that boxings lower to, as values.

A move is one collective over flat, contiguous buffers. It says everything that decides
its bytes (group, counts, dtype, algorithm), so what a rank sends and receives is known
before anything runs:

    ring       each rank passes chunks to its predecessor in the group
    tree       a rank that holds the elements passes them on, twice as many each round
    direct     each pair of ranks exchanges what it needs, once

Ring and tree are those of gloo, byte for byte (headers apart). NCCL chooses its own and
does not say which; there the figures are those of the same algorithms.

Sums of `sent_bytes` and of `received_bytes` over a group are equal. Index i of `group`,
`counts` and `chunks` is the i-th member, not the rank number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import torch

MoveReduction: TypeAlias = Literal["sum", "max", "min"]
"""What a wire computes; an average is a sum divided afterwards by the boxing."""


@dataclass(frozen=True)
class AllReduce:
    """Each member gives n elements and gets the reduction of all, by a ring.

    Payload (n,) -> result (n,).
    """

    group: tuple[int, ...]
    num_elements: int
    dtype: torch.dtype
    reduction: MoveReduction = "sum"

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements in each of the ring's chunks; member i completes chunk i."""
        return _ring_chunks(self.num_elements, self.dtype.itemsize, len(self.group))

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends."""
        return self._ring_bytes(rank, other=-1)

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives."""
        return self._ring_bytes(rank, other=1)

    def _ring_bytes(self, rank: int, other: int) -> int:
        # Each half of the ring moves all chunks but one past a rank. Member i begins
        # with chunk i + 1. It sends all but chunk i, then all but chunk i - 1, and
        # gets all but chunk i + 1, then all but chunk i.
        size, me = len(self.group), self.group.index(rank)
        if size == 1:
            return 0
        left_out = self.chunks[me] + self.chunks[(me + other) % size]
        return (2 * self.num_elements - left_out) * self.dtype.itemsize


@dataclass(frozen=True)
class AllGather:
    """Member i gives counts[i] elements; each gets all, in group order.

    Payload (counts[i],) -> result (sum(counts),).
    """

    group: tuple[int, ...]
    counts: tuple[int, ...]
    dtype: torch.dtype

    @property
    def algorithm(self) -> Literal["ring", "direct"]:
        """Ring where all counts are equal, direct elsewhere."""
        return "ring" if len(set(self.counts)) == 1 else "direct"

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends."""
        own = self.counts[self.group.index(rank)]
        return own * (len(self.group) - 1) * self.dtype.itemsize

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives."""
        own = self.counts[self.group.index(rank)]
        return (sum(self.counts) - own) * self.dtype.itemsize


@dataclass(frozen=True)
class ReduceScatter:
    """Each member gives sum(counts) elements; member i gets its counts[i], reduced.

    Direct (gloo's own would all-reduce the payload, at twice the bytes).

    Payload (sum(counts),), ordered by receiver -> result (counts[i],).
    """

    group: tuple[int, ...]
    counts: tuple[int, ...]
    dtype: torch.dtype
    reduction: MoveReduction = "sum"

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends."""
        own = self.counts[self.group.index(rank)]
        return (sum(self.counts) - own) * self.dtype.itemsize

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives."""
        own = self.counts[self.group.index(rank)]
        return own * (len(self.group) - 1) * self.dtype.itemsize


@dataclass(frozen=True)
class AllToAll:
    """Member i gives counts[i][j] elements to member j, itself included; direct.

    A point-to-point transfer is an all-to-all in which most counts are 0.
    Payload (sum of row i,), ordered by receiver -> result (sum of column i,), ordered
    by sender.
    """

    group: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    def sends(self, rank: int) -> tuple[int, ...]:
        """How many elements this rank gives each member."""
        return self.counts[self.group.index(rank)]

    def receives(self, rank: int) -> tuple[int, ...]:
        """How many elements this rank gets from each member."""
        me = self.group.index(rank)
        return tuple(row[me] for row in self.counts)

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends to others."""
        row = self.sends(rank)
        return (sum(row) - row[self.group.index(rank)]) * self.dtype.itemsize

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives from others."""
        column = self.receives(rank)
        return (sum(column) - column[self.group.index(rank)]) * self.dtype.itemsize


@dataclass(frozen=True)
class BroadcastFrom:
    """Each member gets the n elements of `root`, by a binomial tree.

    Payload (n,), read at the root only -> result (n,).
    """

    group: tuple[int, ...]
    root: int
    num_elements: int
    dtype: torch.dtype

    def targets(self, rank: int) -> tuple[int, ...]:
        """The ranks that this rank passes the elements on to, in order.

        In round i every member at distance d < 2**i from the root, which is d steps
        along the group, serves the one at distance d + 2**i.
        """
        size, root = len(self.group), self.group.index(self.root)
        distance = (self.group.index(rank) - root) % size
        steps = (1 << i for i in range(distance.bit_length(), size.bit_length()))
        reached = (distance + step for step in steps if distance + step < size)
        return tuple(self.group[(root + far) % size] for far in reached)

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends."""
        return len(self.targets(rank)) * self.num_elements * self.dtype.itemsize

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives."""
        return 0 if rank == self.root else self.num_elements * self.dtype.itemsize


Move: TypeAlias = AllReduce | AllGather | ReduceScatter | AllToAll | BroadcastFrom


_RING_SEGMENT_BYTES = 1 << 20


@lru_cache(maxsize=4096)
def _ring_chunks(num_elements: int, itemsize: int, size: int) -> tuple[int, ...]:
    # gloo's rule (gloo/allreduce.cc, ring): equal segments of at most about 1 MiB, the
    # same number in each chunk and at least two; only the last ones are short.
    num_bytes = num_elements * itemsize
    limit = max(1, _RING_SEGMENT_BYTES // itemsize) * itemsize
    num_segments = max(-(-num_bytes // limit), 2 * size)
    per_chunk = -(-num_segments // size)
    segment_bytes = -(-num_bytes // (per_chunk * size))
    step = -(-segment_bytes // itemsize) * per_chunk
    starts = (min(i * step, num_elements) for i in range(size))
    return tuple(min(step, num_elements - start) for start in starts)


def describe(move: Move) -> str:
    """A move in one short line, for errors and reports."""
    kind = type(move).__name__
    return f"{kind} of {move.dtype} over ranks {_ranks(move.group)}"


def _ranks(group: Sequence[int]) -> str:
    return ", ".join(map(str, group)) if len(group) <= 8 else f"{len(group)} ranks"
