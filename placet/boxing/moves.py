"""Moves: the transfers that boxings lower to, as values.

A move is one collective over flat, contiguous buffers. It says everything that decides
its bytes (group, counts, dtype, algorithm), so what a rank sends and receives is known
before anything runs:

    ring          each rank passes chunks to its predecessor in the group
    tree          a rank that holds the elements passes them on, twice as many each
                  round
    direct        each pair of ranks exchanges what it needs, once; an all-reduce does
                  so twice, with terms and then with sums
    exchange      each rank gives each other all it has, and each reduces for itself
    doubling      in round i pairs at distance 2**i swap and reduce all they have
    hierarchical  a ring in each block of ranks, a ring across the blocks

Ring and tree are those of gloo, byte for byte (headers apart), and with direct they are
what a move uses where nothing else is said. NCCL chooses its own and does not say
which; there the figures are those of the same algorithms. The others need a wire that
runs them; `placet.boxing.algorithms` chooses.

What looks like another kind is one of these: a reduction to a root is a reduce-scatter
with counts 0 but at the root; gather, scatter and send are all-to-alls with mostly
counts 0; a barrier is an all-reduce of one element.

Sums of `sent_bytes` and of `received_bytes` over a group are equal. Index i of `group`,
`counts` and `chunks` is the i-th member, not the rank number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from placet.boxing.algorithm_bytes import (
    direct_elements,
    doubling_elements,
    exchange_elements,
    hierarchical_elements,
    ring_chunks,
    ring_elements,
)

MoveReduction: TypeAlias = Literal["sum", "prod", "max", "min"]
"""What a wire computes; an average is a sum divided afterwards by the boxing."""

AllReduceAlgorithm: TypeAlias = Literal[
    "ring", "direct", "exchange", "doubling", "hierarchical"
]
"""How an all-reduce runs; see the module."""

ScatterAlgorithm: TypeAlias = Literal["ring", "direct"]
"""How an all-gather or a reduce-scatter runs; see the module."""


@dataclass(frozen=True)
class AllReduce:
    """Each member gives n elements and gets the reduction of all.

    Payload (n,) -> result (n,).

    Args:
        blocks: for a hierarchical one: which ranks share a host; two blocks or more,
            all of one size of two or more.

    Raises:
        ValueError: the blocks do not fit the group or the algorithm.
    """

    group: tuple[int, ...]
    num_elements: int
    dtype: torch.dtype
    reduction: MoveReduction = "sum"
    algorithm: AllReduceAlgorithm = "ring"
    blocks: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.algorithm == "hierarchical" or self.blocks:
            _check_blocks(self)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements in each of the ring's chunks; member i completes chunk i."""
        return ring_chunks(self.num_elements, self.dtype.itemsize, len(self.group))

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends."""
        return self._elements(rank)[0] * self.dtype.itemsize

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives."""
        return self._elements(rank)[1] * self.dtype.itemsize

    def _elements(self, rank: int) -> tuple[int, int]:
        size, me = len(self.group), self.group.index(rank)
        if size == 1:
            return 0, 0
        match self.algorithm:
            case "ring":
                return ring_elements(self.chunks, me)
            case "direct":
                return direct_elements(self.num_elements, size, me)
            case "exchange":
                return exchange_elements(self.num_elements, size)
            case "doubling":
                return doubling_elements(self.num_elements, size, me)
            case "hierarchical":
                return hierarchical_elements(self.num_elements, self.blocks, rank)


def _check_blocks(move: AllReduce) -> None:
    if move.algorithm != "hierarchical":
        raise ValueError(
            f"blocks={move.blocks} with algorithm={move.algorithm!r}; only a "
            "hierarchical all-reduce has blocks"
        )
    sizes = {len(block) for block in move.blocks}
    members = sorted(rank for block in move.blocks for rank in block)
    fits = len(sizes) == 1 and min(sizes) > 1 and len(move.blocks) > 1
    if not fits or members != sorted(move.group):
        raise ValueError(
            f"blocks={move.blocks} over the group {move.group}; a hierarchical "
            "all-reduce needs each member in one of 2 or more blocks, all of one size "
            "of 2 or more"
        )


@dataclass(frozen=True)
class AllGather:
    """Member i gives counts[i] elements; each gets all, in group order.

    Payload (counts[i],) -> result (sum(counts),).

    Args:
        chosen: the algorithm, where it is not to be gloo's.
    """

    group: tuple[int, ...]
    counts: tuple[int, ...]
    dtype: torch.dtype
    chosen: ScatterAlgorithm | None = None

    @property
    def algorithm(self) -> ScatterAlgorithm:
        """As chosen; else ring where all counts are equal, direct elsewhere."""
        if self.chosen is not None:
            return self.chosen
        return "ring" if len(set(self.counts)) == 1 else "direct"

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends."""
        me = self.group.index(rank)
        if self.algorithm == "ring":
            # It passes on all but what its predecessor began with.
            return (sum(self.counts) - self.counts[me - 1]) * self.dtype.itemsize
        return self.counts[me] * (len(self.group) - 1) * self.dtype.itemsize

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives."""
        own = self.counts[self.group.index(rank)]
        return (sum(self.counts) - own) * self.dtype.itemsize


@dataclass(frozen=True)
class ReduceScatter:
    """Each member gives sum(counts) elements; member i gets its counts[i], reduced.

    Direct where nothing is said (gloo's own would all-reduce the payload, at twice the
    bytes).

    Payload (sum(counts),), ordered by receiver -> result (counts[i],).
    """

    group: tuple[int, ...]
    counts: tuple[int, ...]
    dtype: torch.dtype
    reduction: MoveReduction = "sum"
    algorithm: ScatterAlgorithm = "direct"

    def sent_bytes(self, rank: int) -> int:
        """Bytes this rank sends."""
        own = self.counts[self.group.index(rank)]
        return (sum(self.counts) - own) * self.dtype.itemsize

    def received_bytes(self, rank: int) -> int:
        """Bytes this rank receives."""
        size, me = len(self.group), self.group.index(rank)
        if self.algorithm == "ring":
            # Its successor sends it all but what it completes itself.
            left_out = self.counts[(me + 1) % size]
            return (sum(self.counts) - left_out) * self.dtype.itemsize
        return self.counts[me] * (size - 1) * self.dtype.itemsize


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


def algorithm_of(move: Move) -> str:
    """The name of a move's algorithm."""
    match move:
        case AllReduce() | AllGather() | ReduceScatter():
            return move.algorithm
        case AllToAll():
            return "direct"
        case BroadcastFrom():
            return "tree"


def describe(move: Move) -> str:
    """A move in one short line, for errors and reports."""
    kind = type(move).__name__
    return f"{kind} of {move.dtype} over ranks {_ranks(move.group)}"


def _ranks(group: Sequence[int]) -> str:
    return ", ".join(map(str, group)) if len(group) <= 8 else f"{len(group)} ranks"
