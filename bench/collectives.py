"""Every collective of the engine beside torch's gloo, in the same processes, in turn.

Real processes on one machine, one thread each, links not slowed down. All ranks begin a
step behind a barrier; a step takes as long as its slowest rank. Each result is compared
with gloo's before anything is timed. The control is gloo in a group of its own.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from bench.harness import (
    Measured,
    Options,
    Outcome,
    Samples,
    Side,
    measure,
    of_ranks,
    rows_of,
    run_bench,
)
from bench.ratios import Row, timed_row
from bench.wires import KINDS, WireKind, chosen, open_wire
from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
)
from placet.wire.c10d import C10dWire
from placet.wire.check import result_size
from placet.wire.interface import Wire
from testing.ranks import run_ranks

QUESTION = "How fast are the engine's collectives beside gloo's, on one machine?"
KIB, MIB = 2**10, 2**20
SIZES = (256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
QUICK_SIZES = (256 * KIB, 16 * MIB)
OTHERS = ("all-gather", "reduce-scatter", "all-to-all", "broadcast")
MOST_AT = {2: 1 / 1.5, 4: 1.0}
"""Ranks -> how much of gloo's time an all-reduce may take."""
MOST_OF_MANY, MOST_OF_LATENCY, MOST_OF_DISORDER = 0.5, 1.0, 1.1
MOST_CALLS, STEP_BYTES = 20, 4 * MIB
"""Small collectives come in a row, as many as make a step of these bytes: a barrier
does not end that sharply on all ranks, and a row keeps them together by itself."""

Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        kind: a collective, "many" (64 of them at once) or "disorder".
        num_bytes: what the largest buffer of a rank holds.
        most: the target; None: shown only.
    """

    kind: str
    num_bytes: int
    most: float | None

    @property
    def num_calls(self) -> int:
        """How many calls in a row make a step; its time is shared out over them."""
        if self.kind in ("many", "disorder"):
            return 1
        return max(1, min(MOST_CALLS, STEP_BYTES // self.num_bytes))

    def title(self, num_ranks: int) -> str:
        """What the rows call it."""
        size = _size(self.num_bytes)
        name = {
            "many": f"64 all-reduces {size} at once",
            "disorder": f"32 all-reduces {size}, random order",
        }.get(self.kind, f"{self.kind} {size}")
        return f"{num_ranks} ranks, {name}"


def cases(num_ranks: int, *, quick: bool) -> tuple[Case, ...]:
    """What is compared at so many ranks."""
    sizes = QUICK_SIZES if quick else SIZES
    found = [Case("all-reduce", size, MOST_AT[num_ranks]) for size in sizes]
    if num_ranks == 2:
        found.append(Case("all-reduce", 4 * KIB, MOST_OF_LATENCY))
        found.append(Case("many", 4 * KIB, MOST_OF_MANY))
        found.append(Case("disorder", MIB, MOST_OF_DISORDER))
    if num_ranks == 2 or not quick:
        found += [Case(kind, 4 * MIB, None) for kind in OTHERS]
    return tuple(found)


def collect(options: Options) -> Outcome:
    """Rows at 2 and at 4 ranks."""
    rows: list[Row] = []
    notes = [
        "a step takes from a barrier to the end of its slowest rank; small collectives "
        f"come in a row of up to {MOST_CALLS}, and the time is that of one; CPU time "
        "is that of all ranks",
    ]
    for num_ranks in (2, 4):
        wanted = cases(num_ranks, quick=options.quick)
        budget_seconds = options.budget_seconds / (2 * len(wanted))
        found = run_ranks(
            num_ranks, time_cases, wanted, options, budget_seconds, timeout=1500
        )
        by_rank = [cast(list[Measured | None], rank) for rank in found]
        for case, of_case in zip(wanted, zip(*by_rank, strict=True), strict=True):
            title = case.title(num_ranks)
            if None in of_case:
                notes.append(f"{title}: left out, {options.wire} is not order-free")
                continue
            measured = of_ranks(cast(Sequence[Measured], of_case))
            rows += case_rows(case, title, measured)
    return Outcome(tuple(rows), tuple(notes))


def case_rows(case: Case, title: str, measured: Measured) -> tuple[Row, ...]:
    """The rows of one case; those of calls in a row give the time of one."""

    def shared(side: Samples) -> Samples:
        return Samples(
            tuple(s / case.num_calls for s in side.seconds),
            tuple(s / case.num_calls for s in side.cpu_seconds),
        )

    if case.kind == "disorder":
        ours, peer = measured.ours.seconds, measured.peer.seconds
        return (timed_row(f"{title}, to one order", ours, peer, most=case.most),)
    each = Measured(*map(shared, (measured.ours, measured.peer, measured.control)))
    return rows_of(each, title, most=case.most)


def time_cases(
    gloo: Wire, wanted: Sequence[Case], options: Options, budget_seconds: float
) -> list[Measured | None]:
    """On one rank: each case, or None where the wire cannot run it."""
    torch.set_num_threads(1)
    wire = open_wire(cast(WireKind, options.wire))
    control = dist.new_group(backend="gloo")
    found: list[Measured | None] = []
    for case in wanted:
        if case.kind == "disorder" and not wire.capabilities.order_free:
            found.append(None)
            continue
        found.append(
            measure(
                *_sides(case, wire, control),
                num_pairs=options.num_pairs,
                budget_seconds=budget_seconds,
                num_warm_up=3,
                agree=agree,
                align=dist.barrier,
            )
        )
    dist.barrier()
    wire.close()
    return found


def agree(number: int) -> int:
    """The number that rank 0 came to."""
    numbers = [number]
    dist.broadcast_object_list(numbers, src=0)
    return numbers[0]


def _sides(
    case: Case, wire: Wire, control: dist.ProcessGroup
) -> tuple[Side, Side, Side]:
    world = dist.group.WORLD
    assert world is not None
    if case.kind == "disorder":
        ours = _in_own_order(case, wire, is_shuffled=True)
        # Each with buffers of its own: shared ones would be in the cache more often.
        peers = [_in_own_order(case, wire, is_shuffled=False) for _ in range(2)]
    elif case.kind == "many":
        ours = _many(case, wire)
        peers = [_many_of_torch(case, group) for group in (world, control)]
    else:
        move, payload = _move_of(case, wire)
        move = chosen(wire, move)
        ours = _in_a_row(case.num_calls, _one(wire, move, payload))
        peers = [
            _in_a_row(case.num_calls, _one_of_torch(case.kind, payload, group))
            for group in (world, control)
        ]
        _check_equal(case, move, payload, wire, world)
    return Side("ours", ours), Side("gloo", peers[0]), Side("gloo again", peers[1])


def _one(wire: Wire, move: Move, payload: Tensor) -> Step:
    key = f"{type(move).__name__}.{payload.nbytes}"
    if isinstance(move, AllReduce):
        payload = torch.zeros_like(payload)  # in place: sums must stay finite
        return lambda: wire.submit(move, payload, key=key, out=payload).wait()
    out = torch.zeros(result_size(move, wire.rank), dtype=payload.dtype)
    return lambda: wire.submit(move, payload, key=key, out=out).wait()


def _move_of(case: Case, wire: Wire) -> tuple[Move, Tensor]:
    """A move whose largest buffer has the case's size, and this rank's payload."""
    num_ranks = wire.num_ranks
    group, dtype = tuple(range(num_ranks)), torch.float32
    num_elements = case.num_bytes // dtype.itemsize
    each = num_elements // num_ranks
    moves: dict[str, Move] = {
        "all-reduce": AllReduce(group, num_elements, dtype),
        "all-gather": AllGather(group, (each,) * num_ranks, dtype),
        "reduce-scatter": ReduceScatter(group, (each,) * num_ranks, dtype),
        "all-to-all": AllToAll(group, ((each,) * num_ranks,) * num_ranks, dtype),
        "broadcast": BroadcastFrom(group, 0, num_elements, dtype),
    }
    generator = torch.Generator().manual_seed(wire.rank)
    size = each if case.kind == "all-gather" else num_elements
    # Small whole numbers: their sums are exact in any order.
    payload = torch.randint(0, 100, (size,), generator=generator).to(dtype)
    return moves[case.kind], payload


def _one_of_torch(kind: str, payload: Tensor, group: dist.ProcessGroup) -> Step:
    """torch's own call; its result lies in what the step returns."""
    num_ranks = dist.get_world_size()
    if kind in ("all-reduce", "broadcast"):
        data = torch.zeros_like(payload)
        if kind == "broadcast":
            return lambda: dist.broadcast(data, src=0, group=group)
        return lambda: dist.all_reduce(data, group=group)
    size = payload.numel()
    sizes = {"all-gather": size * num_ranks, "reduce-scatter": size // num_ranks}
    out = torch.zeros(sizes.get(kind, size))
    calls: dict[str, Step] = {
        "all-gather": lambda: dist.all_gather_single(out, payload, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_single(out, payload, group=group),
        "all-to-all": lambda: dist.all_to_all_single(out, payload, group=group),
    }
    return calls[kind]


def _check_equal(
    case: Case, move: Move, payload: Tensor, wire: Wire, world: dist.ProcessGroup
) -> None:
    plain, _ = _move_of(case, wire)
    expected = C10dWire(world).submit(plain, payload, key="expected").wait()
    found = wire.submit(move, payload, key=f"check.{case.kind}.{case.num_bytes}").wait()
    if not torch.equal(found, expected):
        raise AssertionError(f"{case.title(wire.num_ranks)}: not what gloo gives")


def _in_a_row(num_calls: int, call: Step) -> Step:
    def step() -> None:
        for _ in range(num_calls):
            call()

    return step


def _many(case: Case, wire: Wire) -> Step:
    plain, buffers = _small_moves(case, wire.num_ranks)
    move = chosen(wire, plain)

    def at_once() -> None:
        futures = [
            wire.submit(move, buffer, key=f"small.{i}", out=buffer)
            for i, buffer in enumerate(buffers)
        ]
        for future in futures:
            future.wait()

    return at_once


def _many_of_torch(case: Case, group: dist.ProcessGroup) -> Step:
    _, buffers = _small_moves(case, dist.get_world_size())

    def at_once() -> None:
        works = [dist.all_reduce(b, group=group, async_op=True) for b in buffers]
        for work in works:
            work.wait()

    return at_once


def _small_moves(case: Case, num_ranks: int) -> tuple[AllReduce, list[Tensor]]:
    num_elements = case.num_bytes // 4
    move = AllReduce(tuple(range(num_ranks)), num_elements, torch.float32)
    return move, [torch.zeros(num_elements) for _ in range(64)]


def _in_own_order(case: Case, wire: Wire, *, is_shuffled: bool) -> Step:
    """32 all-reduces at once; shuffled, each rank submits in an order of its own."""
    num_elements = case.num_bytes // 4
    plain = AllReduce(tuple(range(wire.num_ranks)), num_elements, torch.float32)
    move = chosen(wire, plain)
    buffers = [torch.zeros(num_elements) for _ in range(32)]
    # Always another order, as the order in memory alone makes a difference.
    orders = random.Random(wire.rank if is_shuffled else 0)

    def step() -> None:
        order = list(range(len(buffers)))
        orders.shuffle(order)
        futures = [
            wire.submit(move, buffers[i], key=f"order.{i}", out=buffers[i])
            for i in order
        ]
        for future in futures:
            future.wait()

    return step


def _size(num_bytes: int) -> str:
    if num_bytes >= MIB:
        return f"{num_bytes // MIB} MiB"
    return f"{num_bytes // KIB} KiB"


if __name__ == "__main__":
    sys.exit(run_bench("collectives", QUESTION, collect, wires=KINDS))
