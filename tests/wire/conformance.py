"""What every wire must do, as functions of one rank: run them on each implementation.

    run_threads(3, check_moves, "cpu")          the twin
    run_ranks(3, check_moves, "cpu")            gloo, real processes

Values are small whole numbers, so sums are exact in every dtype and any order.
"""

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
)
from placet.errors import WireError
from placet.wire.check import REDUCIBLE, payload_size, result_size
from placet.wire.interface import Traffic, Wire

CARRIED = (
    torch.bool,
    torch.int16,
    torch.uint16,
    torch.complex64,
    torch.float8_e4m3fn,
)
"""dtypes that no backend reduces, but that every wire must carry."""


def groups_with(rank: int, num_ranks: int) -> Iterator[tuple[int, ...]]:
    """All, all backwards, one pair across, and alone: those that `rank` is in."""
    everyone = tuple(range(num_ranks))
    for group in (everyone, everyone[::-1], (num_ranks - 1, 0), (rank,)):
        if rank in group and len(set(group)) == len(group):
            yield group


def moves_of(group: tuple[int, ...], dtype: torch.dtype) -> Iterator[Move]:
    """Every kind of move, with even, uneven and empty counts."""
    size = len(group)
    uneven = tuple((7 * i + 3) % 5 for i in range(size))
    for counts in ((4,) * size, uneven, (0,) * size, (0,) * (size - 1) + (5,)):
        yield AllGather(group, counts, dtype)
        yield ReduceScatter(group, counts, dtype)
        yield ReduceScatter(group, counts, dtype, "min")
    for n in (0, 1, 10, 1003):
        yield AllReduce(group, n, dtype)
        yield AllReduce(group, n, dtype, "max")
        for root in group:
            yield BroadcastFrom(group, root, n, dtype)
    members = range(size)
    for counts_of in (
        lambda i, j: 3,
        lambda i, j: (i + 2 * j) % 4,
        lambda i, j: 0,
        lambda i, j: 6 if (i, j) == (0, size - 1) else 0,
        lambda i, j: 2 if i == j else 0,
    ):
        table = tuple(tuple(counts_of(i, j) for j in members) for i in members)
        yield AllToAll(group, table, dtype)


def payload_of(move: Move, rank: int, device: str) -> Tensor:
    """Elements that tell their rank and position."""
    index = torch.arange(payload_size(move, rank), device=device)
    return ((3 * rank + index) % 11).to(move.dtype)


def expected(
    move: Move,
    rank: int,
    device: str,
    give: Callable[[Move, int, str], Tensor] = payload_of,
) -> Tensor:
    """The result by the move's definition, where `give` says what each rank gave."""
    given = [give(move, r, device) for r in move.group]
    me = move.group.index(rank)
    match move:
        case AllReduce():
            return _reduce(given, move.reduction)
        case AllGather():
            return torch.cat(given)
        case ReduceScatter():
            start = sum(move.counts[:me])
            return _reduce(given, move.reduction)[start : start + move.counts[me]]
        case AllToAll():
            pieces = []
            for row, elements in zip(move.counts, given, strict=True):
                start = sum(row[:me])
                pieces.append(elements[start : start + row[me]])
            return torch.cat(pieces)
        case BroadcastFrom():
            return given[move.group.index(move.root)]


def _reduce(given: list[Tensor], reduction: str) -> Tensor:
    terms = torch.stack(given)
    if reduction == "sum":
        return terms.sum(0, dtype=terms.dtype)
    if reduction == "prod":
        return terms.prod(0, dtype=terms.dtype)
    return terms.amax(0) if reduction == "max" else terms.amin(0)


def same(found: Tensor, wanted: Tensor) -> None:
    """Equal to the last bit."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.device == wanted.device
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)), (
        found,
        wanted,
    )


def check_moves(wire: Wire, device: str) -> None:
    """All moves over all groups: results, untouched payloads, bytes as predicted."""
    rank = wire.rank
    for g, group in enumerate(groups_with(rank, wire.num_ranks)):
        if rank not in group:
            continue
        for i, move in enumerate(moves_of(group, torch.float64)):
            payload = payload_of(move, rank, device)
            size = result_size(move, rank)
            out = None if i % 2 else payload.new_full((size,), -1)
            future = wire.submit(move, payload, key=f"{g}.{i}", out=out)
            result = future.wait()
            same(result, expected(move, rank, device))
            same(payload, payload_of(move, rank, device))
            if out is not None:
                same(out, result)
                assert out.data_ptr() == result.data_ptr()
            predicted = Traffic(move.sent_bytes(rank), move.received_bytes(rank))
            assert future.traffic() == predicted, move
            assert future.done()


def check_dtypes(wire: Wire, device: str) -> None:
    """Reducible dtypes reduce; any dtype travels, also one gloo does not know."""
    everyone = tuple(range(wire.num_ranks))
    size = wire.num_ranks
    uneven = tuple(range(1, size + 1))
    for dtype in sorted(REDUCIBLE, key=str):
        for move in (
            AllReduce(everyone, 7, dtype),
            AllReduce(everyone, 7, dtype, "max"),
            ReduceScatter(everyone, uneven, dtype),
        ):
            _check(wire, move, device, key=f"{dtype}")
    for dtype in (*CARRIED, torch.float32):
        table = tuple((i,) * size for i in range(1, size + 1))
        for carried in (
            AllGather(everyone, (3,) * size, dtype),
            AllGather(everyone, uneven, dtype),
            AllToAll(everyone, table, dtype),
            BroadcastFrom(everyone, size - 1, 5, dtype),
        ):
            _check(wire, carried, device, key=f"{dtype}")


def _check(wire: Wire, move: Move, device: str, *, key: str) -> None:
    payload = payload_of(move, wire.rank, device)
    result = wire.submit(move, payload, key=key).wait()
    same(result, expected(move, wire.rank, device))


def check_in_place(wire: Wire, device: str) -> None:
    """An all-reduce and a broadcast may write over their payload."""
    everyone = tuple(range(wire.num_ranks))
    for i, move in enumerate(
        (AllReduce(everyone, 9, torch.float32), BroadcastFrom(everyone, 0, 9, _F32))
    ):
        payload = payload_of(move, wire.rank, device)
        result = wire.submit(move, payload, key=f"{i}", out=payload).wait()
        assert result.data_ptr() == payload.data_ptr()
        same(payload, expected(move, wire.rank, device))


_F32 = torch.float32


def check_in_flight(wire: Wire, device: str) -> None:
    """Many moves at once, waited for backwards; `done` becomes true by itself."""
    group = tuple(range(wire.num_ranks))
    moves = list(moves_of(group, torch.float32))
    futures = [
        wire.submit(move, payload_of(move, wire.rank, device), key=f"{i}")
        for i, move in enumerate(moves)
    ]
    deadline = time.monotonic() + 10
    while [future for future in futures if not future.done()]:
        assert time.monotonic() < deadline, "a future is never done"
    for move, future in reversed(list(zip(moves, futures, strict=True))):
        same(future.wait(), expected(move, wire.rank, device))
        same(future.wait(), expected(move, wire.rank, device))


def check_same_key(wire: Wire, device: str) -> None:
    """A key serves again at the next step, and at once in groups apart."""
    half = wire.num_ranks // 2
    low, high = tuple(range(half)), tuple(range(half, wire.num_ranks))
    group = low if wire.rank in low else high
    move = AllReduce(group, 5, torch.float64)
    for step in range(3):
        payload = payload_of(move, wire.rank, device) * step
        result = wire.submit(move, payload, key="grads").wait()
        same(result, expected(move, wire.rank, device) * step)


def check_prepared(wire: Wire, device: str) -> None:
    """Groups made beforehand may be used in any order of groups."""
    everyone = range(wire.num_ranks)
    pairs = [(i, j) for i in everyone for j in everyone if i != j]
    mine = [pair for pair in pairs if wire.rank in pair]
    wire.prepare(pairs[::-1] if wire.rank else pairs)
    futures = []
    for pair in mine if wire.rank else mine[::-1]:
        move = AllReduce(pair, 3, torch.float64)
        payload = payload_of(move, wire.rank, device)
        futures.append((move, wire.submit(move, payload, key=f"{pair}")))
    for move, future in futures:
        same(future.wait(), expected(move, wire.rank, device))


def check_no_graph(wire: Wire, device: str) -> None:
    """A payload that requires grad moves its values only."""
    group = tuple(range(wire.num_ranks))
    move = AllReduce(group, 4, torch.float64)
    payload = payload_of(move, wire.rank, device).requires_grad_()
    result = wire.submit(move, payload, key="x").wait()
    assert not result.requires_grad
    same(result, expected(move, wire.rank, device))


def check_exchange(wire: Wire, device: str) -> None:
    """Bytes of any content and length, the same key twice, counted as control."""
    before = wire.control_bytes()
    values = [bytes([0, 255, r]) * (r + 1) for r in range(wire.num_ranks)]
    assert wire.exchange(values[wire.rank], key="hello") == values
    again = [b"" if r else b"\x00" for r in range(wire.num_ranks)]
    assert wire.exchange(again[wire.rank], key="hello") == again
    others = sum(map(len, values)) - len(values[wire.rank])
    assert wire.control_bytes() - before >= len(values[wire.rank]) + others


def check_refusals(wire: Wire, device: str) -> None:
    """What fits no wire is refused at once, by the caller's own error."""
    everyone = tuple(range(wire.num_ranks))
    others = tuple(r for r in everyone if r != wire.rank)
    good = torch.ones(4, device=device)
    table = ((1,) * wire.num_ranks,) * (wire.num_ranks - 1)
    f32 = torch.float32
    for error, message, move, payload in (
        (ValueError, "is not in the group", AllReduce(others, 4, f32), good),
        (ValueError, r"shape \(4,\); it needs .* shape \(5,\)",
         AllReduce(everyone, 5, f32), good),
        (ValueError, "float32 .* needs to be contiguous torch.float64",
         AllReduce(everyone, 4, torch.float64), good),
        (ValueError, "payload is strided",
         AllReduce(everyone, 2, f32), good[::2]),
        (ValueError, "need .* counts each way", AllGather(everyone, (4,), f32), good),
        (ValueError, "need .* counts each way", AllToAll(everyone, table, f32), good),
        (ValueError, "negative", AllGather(everyone, (4, -1, 4), f32), good),
        (ValueError, "twice in the group",
         AllReduce((*everyone, wire.rank), 4, f32), good),
        (ValueError, "root, rank 9, is not",
         BroadcastFrom(everyone, 9, 4, f32), good),
        (TypeError, "cannot be reduced; convert",
         AllReduce(everyone, 4, torch.bool), good.bool()),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            wire.submit(move, payload, key="bad")
    move = AllReduce(everyone, 4, f32)
    with pytest.raises(ValueError, match=r"the out is .* shape \(3,\)"):
        wire.submit(move, good, key="bad", out=good.new_empty(3))
    with pytest.raises(ValueError, match="key 'bad'"):
        wire.submit(move, good.double(), key="bad")
    _check(wire, move, device, key="good")


def check_late(wire: Wire, device: str) -> str:
    """One rank does not come: the others learn who, and of which key."""
    group = tuple(range(wire.num_ranks))
    move = AllReduce(group, 4, torch.float32)
    payload = payload_of(move, wire.rank, device)
    late = wire.rank == 1
    try:
        found = (
            "no error" if late else f"{wire.submit(move, payload, key='late').wait()}"
        )
    except WireError as error:
        found = f"{type(error).__name__} {error}"
    wire.timeout_seconds = 20
    wire.exchange(b"", key="all timed out")
    return found


def check_lost(wire: Wire, device: str) -> str:
    """One rank raises: the others learn that it is gone."""
    group = tuple(range(wire.num_ranks))
    move = AllReduce(group, 4, torch.float32)
    payload = payload_of(move, wire.rank, device)
    wire.submit(move, payload, key="first").wait()
    if wire.rank == 1:
        raise KeyError("rank 1 stops here")
    wire.submit(move, payload, key="second").wait()
    return "no error"


def check_mismatch(wire: Wire, device: str) -> str:
    """One key, two moves: everyone learns of it."""
    group = tuple(range(wire.num_ranks))
    move = AllReduce(group, 4 + (wire.rank == 1), torch.float32)
    try:
        wire.submit(move, payload_of(move, wire.rank, device), key="grads.3").wait()
    except WireError as error:
        found = f"{type(error).__name__} {error}"
    else:
        found = "no error"
    wire.exchange(b"", key="all failed")
    return found


def submit_in_two_orders(wire: Wire, device: str) -> str:
    """Rank 1 submits two moves the other way round."""
    group = tuple(range(wire.num_ranks))
    move = AllReduce(group, 4, torch.float32)
    keys = ["b", "a"] if wire.rank == 1 else ["a", "b"]
    found = "no error"
    try:
        futures = {
            key: wire.submit(
                move, payload_of(move, wire.rank, device) + ord(key), key=key
            )
            for key in keys
        }
        for key, future in futures.items():
            extra = ord(key) * wire.num_ranks
            same(future.wait(), expected(move, wire.rank, device) + extra)
    except WireError as error:
        found = f"{type(error).__name__} {error}"
    wire.exchange(b"", key="all failed")
    return found


CHECKS = (
    check_moves,
    check_dtypes,
    check_in_place,
    check_in_flight,
    check_same_key,
    check_prepared,
    check_no_graph,
    check_exchange,
    check_refusals,
)
"""Those that end well on every wire, with 3 ranks or more."""
