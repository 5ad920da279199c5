"""Which algorithm a move takes, by what the links between its ranks cost.

The price of an algorithm, in seconds, is that of its stages, one after the other:

    rounds x latency + extra messages x 5 us + busiest link's bytes / its rate
                     + bytes that wait in scratch memory / 4 GB/s

A round's latency is the worst of the links that the stage uses. Inside a host each rank
has a link of its own, each way; what leaves a host shares one uplink, whose rate is
that of the link class.  -> seconds

All members choose the same, as they price from equal values.

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), for pricing by
latency and rate; differs in that ranks of a host share its uplink.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from placet.boxing.algorithm_bytes import (
    doubling_core,
    even_chunks,
    ring_elements,
)
from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllReduceAlgorithm,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
    ScatterAlgorithm,
)
from placet.placement.cluster import Cluster, LinkClass

SMALL_BYTES = 1 << 16
"""Payloads up to this may be sent whole to several members."""

MANY_MEMBERS = 64
"""In groups larger than this nobody sends to all others."""

EXCHANGE_SCRATCH_BYTES = 1 << 20
"""An exchange or a direct all-reduce may set aside so much at most, on each member."""

MESSAGE_SECONDS = 5e-6
"""What one more message costs its sender in the same round; a guess."""

SCRATCH_BYTES_PER_S = 4e9
"""How fast a core adds what waits in scratch memory; a guess."""

Flow: TypeAlias = tuple[int, int, int]
"""(src, dst, bytes)"""


@dataclass(frozen=True)
class Stage:
    """A part of a move that begins when the one before it is done.

    Args:
        rounds: messages that must wait for one another.
        messages: sent by one rank in a round.
        flows: all that is sent.
        scratch_bytes: what a rank sets aside first and adds then.
    """

    rounds: int
    messages: int
    flows: tuple[Flow, ...]
    scratch_bytes: int = 0


@lru_cache(maxsize=4096)
def choose(move: Move, cluster: Cluster | None) -> Move:
    """The same move with the algorithm of the least price.

        choose(AllReduce((0, 1), 4, torch.float32), cluster).algorithm  # "exchange"

    An all-reduce of at most 64 KiB may be an exchange (if that sets aside at most
    1 MiB) or a recursive doubling, and one of at most 1 MiB direct. One over several
    hosts, or several groups of hosts, with equally many members each, may be
    hierarchical. An all-gather and a reduce-scatter may be a ring or direct. Between
    equal prices the earlier in this order wins. More than 64 members are not sent to
    one by one. Other moves stay as they are.

    Args:
        move: its own algorithm does not matter.
        cluster: has all ranks of the move; None leaves the move as it is.

    Raises:
        ValueError: a member is not in the cluster.
    """
    if cluster is None or len(move.group) == 1:
        return move
    candidates = list(_candidates(move, cluster))
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda candidate: seconds(candidate, cluster))


@lru_cache(maxsize=4096)
def seconds(move: Move, cluster: Cluster) -> float:
    """What a move costs with its algorithm, over p members and n bytes.

    On one host of latency a and rate r, leaving out the small terms:

        all-reduce   ring          2 (p - 1) a + 2 n (p - 1) / p / r
                     direct        2 a + the same
                     exchange      a + n (p - 1) / r
                     doubling      log2(p) (a + n / r)
                     hierarchical  rings of n in the blocks and of n / m across
        all-gather, reduce-scatter (n: of all parts)
                     ring          (p - 1) a + n (p - 1) / p / r
                     direct        a + the same
        all-to-all   direct        a + the busiest rank's bytes / r
        broadcast    tree          log2(p) a + bytes of the rank that sends most / r

    On several, what leaves a host counts for its uplink all together.

    Raises:
        ValueError: a member is not in the cluster.
    """
    return sum(_stage_seconds(stage, cluster) for stage in stages(move))


def stages(move: Move) -> tuple[Stage, ...]:
    """A move's stages; their flows are exactly what its ranks send and receive."""
    size = len(move.group)
    if size == 1:
        return ()
    num_bytes = [move.sent_bytes(rank) for rank in move.group]
    match move:
        case AllReduce(algorithm="ring"):
            return (Stage(2 * (size - 1), 1, tuple(_ring(move.group, num_bytes))),)
        case AllGather(algorithm="ring") | ReduceScatter(algorithm="ring"):
            return (Stage(size - 1, 1, tuple(_ring(move.group, num_bytes))),)
        case AllReduce(algorithm="direct"):
            return _direct(move)
        case AllReduce(algorithm="doubling"):
            return _doubling(move)
        case AllReduce(algorithm="hierarchical"):
            return _hierarchical(move)
        case BroadcastFrom():
            flows = tuple(_pairs(move))
            return (Stage((size - 1).bit_length(), 1, flows),)
        case _:
            waits = isinstance(move, AllReduce | ReduceScatter)
            scratch = max(map(move.received_bytes, move.group)) if waits else 0
            return (Stage(1, size - 1, tuple(_pairs(move)), scratch),)


def all_reduce_algorithms(
    num_bytes: float, num_ranks: int
) -> Iterator[AllReduceAlgorithm]:
    """The algorithms without blocks that an all-reduce may take, best ties first."""
    if num_bytes <= SMALL_BYTES:
        fits = (num_ranks - 1) * num_bytes <= EXCHANGE_SCRATCH_BYTES
        if num_ranks <= MANY_MEMBERS and fits:
            yield "exchange"
        yield "doubling"
    if num_ranks <= MANY_MEMBERS and num_bytes <= EXCHANGE_SCRATCH_BYTES:
        yield "direct"
    yield "ring"


def scatter_algorithms(num_ranks: int) -> Iterator[ScatterAlgorithm]:
    """The algorithms that an all-gather, or a reduce-scatter, may take."""
    yield "ring"
    if num_ranks <= MANY_MEMBERS:
        yield "direct"


def _candidates(move: Move, cluster: Cluster) -> Iterator[Move]:
    size = len(move.group)
    match move:
        case AllReduce():
            plain = replace(move, algorithm="ring", blocks=())
            num_bytes = move.num_elements * move.dtype.itemsize
            for algorithm in all_reduce_algorithms(num_bytes, size):
                yield replace(plain, algorithm=algorithm)
            for blocks in blocks_of(move.group, cluster):
                yield replace(move, algorithm="hierarchical", blocks=blocks)
        case AllGather():
            for scatter in scatter_algorithms(size):
                yield replace(move, chosen=scatter)
        case ReduceScatter():
            for scatter in scatter_algorithms(size):
                yield replace(move, algorithm=scatter)
        case _:
            yield move


def blocks_of(
    group: tuple[int, ...], cluster: Cluster
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The members by host, and by group of hosts, where a hierarchy can be made."""
    hosts = [cluster.host(rank) for rank in group]
    for names in ([host.name for host in hosts], [host.group for host in hosts]):
        found: dict[str, list[int]] = {}
        for name, rank in zip(names, group, strict=True):
            found.setdefault(name, []).append(rank)
        sizes = {len(block) for block in found.values()}
        if len(found) > 1 and len(sizes) == 1 and min(sizes) > 1:
            yield tuple(tuple(block) for block in found.values())


def _ring(group: tuple[int, ...], num_bytes: Iterable[int]) -> Iterator[Flow]:
    for i, sent in enumerate(num_bytes):
        yield group[i], group[i - 1], sent


def _pairs(move: Move) -> Iterator[Flow]:
    """What each member gives each other one directly."""
    group, itemsize = move.group, move.dtype.itemsize
    for i, src in enumerate(group):
        for j, dst in enumerate(group):
            match move:
                case AllReduce():
                    count = move.num_elements
                case AllGather():
                    count = move.counts[i]
                case ReduceScatter():
                    count = move.counts[j]
                case AllToAll():
                    count = move.counts[i][j]
                case BroadcastFrom():
                    count = move.num_elements * (dst in move.targets(src))
            if i != j and count:
                yield src, dst, count * itemsize


def _direct(move: AllReduce) -> tuple[Stage, ...]:
    group, dtype = move.group, move.dtype
    counts = even_chunks(move.num_elements, len(group))
    halves = (
        ReduceScatter(group, counts, dtype, algorithm="direct"),
        AllGather(group, counts, dtype, chosen="direct"),
    )
    return tuple(stage for half in halves for stage in stages(half))


def _doubling(move: AllReduce) -> tuple[Stage, ...]:
    group, num_bytes = move.group, move.num_elements * move.dtype.itemsize
    core, rounds = doubling_core(len(group))
    num_pairs = len(group) - core
    folded = [(group[2 * i], group[2 * i + 1]) for i in range(num_pairs)]
    inner = [dst for _, dst in folded] + list(group[2 * num_pairs :])
    found = []
    if folded:
        flows = tuple((src, dst, num_bytes) for src, dst in folded)
        found.append(Stage(1, 1, flows, num_bytes))
    for r in range(rounds):
        flows = tuple(
            (src, inner[i ^ (1 << r)], num_bytes) for i, src in enumerate(inner)
        )
        found.append(Stage(1, 1, flows, num_bytes))
    if folded:
        back = tuple((dst, src, num_bytes) for src, dst in folded)
        found.append(Stage(1, 1, back))
    return tuple(found)


def _hierarchical(move: AllReduce) -> tuple[Stage, ...]:
    blocks, itemsize = move.blocks, move.dtype.itemsize
    num_blocks, size = len(blocks), len(blocks[0])
    parts = even_chunks(move.num_elements, size)
    inside = [ring_elements(parts, k)[0] * itemsize for k in range(size)]
    within = [flow for block in blocks for flow in _ring(block, inside)]
    across: list[Flow] = []
    scratch_bytes = 0
    for k, count in enumerate(parts):
        pieces = even_chunks(count, num_blocks)
        sent = [ring_elements(pieces, b)[0] * itemsize for b in range(num_blocks)]
        across += _ring(tuple(block[k] for block in blocks), sent)
        scratch_bytes = max(scratch_bytes, count * itemsize)
    return (
        Stage(2 * (size - 1), 1, tuple(within)),
        Stage(2 * (num_blocks - 1), 1, tuple(across), scratch_bytes),
    )


def _stage_seconds(stage: Stage, cluster: Cluster) -> float:
    links: dict[str, LinkClass] = {}
    busy: Counter[tuple[str, str, object]] = Counter()
    hosts = {rank: cluster.host(rank) for flow in stage.flows for rank in flow[:2]}
    for src, dst, num_bytes in stage.flows:
        link = cluster.link(src, dst)
        links[link.name] = link
        inside = hosts[src] is hosts[dst]
        busy["out", link.name, src if inside else hosts[src].name] += num_bytes
        busy["in", link.name, dst if inside else hosts[dst].name] += num_bytes
    if not links:
        return 0.0
    latency = max(link.latency_s for link in links.values())
    moving = max(n / links[name].link_bytes_per_s for (_, name, _), n in busy.items())
    extra = (stage.messages - 1) * MESSAGE_SECONDS
    adding = stage.scratch_bytes / SCRATCH_BYTES_PER_S
    return stage.rounds * (latency + extra) + moving + adding
