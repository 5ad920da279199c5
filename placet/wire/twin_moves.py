"""How the twin carries a move: real copies between members, each of them counted.

Sums have one fixed order, gloo's: an all-reduce of n members adds chunk c as
((x[c-1] + x[c-2]) + ...) + x[c], indices modulo n     -> _all_reduce
a reduce-scatter adds in group order                   -> _reduce_scatter
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    MoveReduction,
    ReduceScatter,
)
from placet.wire.interface import Traffic

REDUCE: dict[MoveReduction, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


def carry(
    move: Move, payloads: Sequence[Tensor]
) -> tuple[list[Tensor], tuple[Traffic, ...]]:
    """Run a whole move.

    Args:
        move: what to do.
        payloads: one per member, in group order; left as they are.

    Returns:
        One new result and the bytes copied per member, in group order.
    """
    links = _Links(len(move.group))
    with torch.no_grad():
        match move:
            case AllReduce():
                results = _all_reduce(move, payloads, links)
            case AllGather():
                results = _all_gather(payloads, links)
            case ReduceScatter():
                results = _reduce_scatter(move, payloads, links)
            case AllToAll():
                results = _all_to_all(move, payloads, links)
            case BroadcastFrom():
                results = _broadcast(move, payloads, links)
    return results, links.traffic()


class _Links:
    """The links between members: copies bytes over them and counts."""

    def __init__(self, num_members: int) -> None:
        self._sent = [0] * num_members
        self._received = [0] * num_members

    def send(self, src: int, dst: int, elements: Tensor) -> Tensor:
        """The elements as they arrive at member `dst`."""
        if src != dst:
            self._sent[src] += elements.nbytes
            self._received[dst] += elements.nbytes
        return elements.clone()

    def traffic(self) -> tuple[Traffic, ...]:
        """What each member sent and received."""
        pairs = zip(self._sent, self._received, strict=True)
        return tuple(Traffic(sent, received) for sent, received in pairs)


def _all_reduce(
    move: AllReduce, payloads: Sequence[Tensor], links: _Links
) -> list[Tensor]:
    size = len(payloads)
    reduce = REDUCE[move.reduction]
    parts = [list(torch.split(p.clone(), list(move.chunks))) for p in payloads]
    for step in range(size - 1):
        for src in range(size):
            dst, chunk = (src - 1) % size, (src + 1 + step) % size
            arrival = links.send(src, dst, parts[src][chunk])
            parts[dst][chunk] = reduce(parts[dst][chunk], arrival)
    for step in range(size - 1):
        for src in range(size):
            dst, chunk = (src - 1) % size, (src + step) % size
            parts[dst][chunk] = links.send(src, dst, parts[src][chunk])
    return [torch.cat(part) for part in parts]


def _all_gather(payloads: Sequence[Tensor], links: _Links) -> list[Tensor]:
    members = range(len(payloads))
    return [
        torch.cat([links.send(src, dst, payloads[src]) for src in members])
        for dst in members
    ]


def _reduce_scatter(
    move: ReduceScatter, payloads: Sequence[Tensor], links: _Links
) -> list[Tensor]:
    reduce = REDUCE[move.reduction]
    parts = [torch.split(p, list(move.counts)) for p in payloads]
    results = []
    for dst in range(len(payloads)):
        total = links.send(0, dst, parts[0][dst])
        for src in range(1, len(payloads)):
            total = reduce(total, links.send(src, dst, parts[src][dst]))
        results.append(total)
    return results


def _all_to_all(
    move: AllToAll, payloads: Sequence[Tensor], links: _Links
) -> list[Tensor]:
    members = range(len(payloads))
    parts = [
        torch.split(p, list(row)) for p, row in zip(payloads, move.counts, strict=True)
    ]
    return [
        torch.cat([links.send(src, dst, parts[src][dst]) for src in members])
        for dst in members
    ]


def _broadcast(
    move: BroadcastFrom, payloads: Sequence[Tensor], links: _Links
) -> list[Tensor]:
    root = move.group.index(move.root)
    results: dict[int, Tensor] = {root: links.send(root, root, payloads[root])}
    reached = [move.root]
    for src in reached:
        for dst in move.targets(src):
            here, there = move.group.index(src), move.group.index(dst)
            results[there] = links.send(here, there, results[here])
            reached.append(dst)
    return [results[member] for member in range(len(payloads))]
