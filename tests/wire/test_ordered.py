"""Order agreement: gloo takes any order; what is lost or late is named."""

import random
import time
from threading import Barrier

import pytest
import torch

from placet.boxing.moves import AllGather, AllReduce, BroadcastFrom
from placet.errors import MoveMismatch, PeerLost, WireError, WireTimeout
from placet.torch_private.c10d import default_store
from placet.wire.chunks import chunks
from placet.wire.engine.connect import connect_engine
from placet.wire.interface import Traffic
from placet.wire.ordered import OrderedWire
from placet.wire.ordered_messages import (
    Announce,
    Define,
    Done,
    Expire,
    pack,
    pack_failure,
    pack_numbers,
    unpack,
    unpack_failure,
    unpack_numbers,
)
from placet.wire.torch_store import TorchStore
from placet.wire.twin import Twin
from testing.engine_ranks import join, on_each, wires
from testing.ranks import run_ranks
from tests.wire.conformance import CHECKS, expected, payload_of, same

F32 = torch.float32
BULK = AllReduce((0, 1, 2), 1 << 20, F32)
URGENT = AllReduce((2, 0, 1), 1000, F32)
CHUNK_BYTES = 1 << 17
NUM_CHUNKS = len(chunks(BULK, CHUNK_BYTES))
GROUPS = ((0, 1, 2), (0, 1), (1, 2), (2, 0), (2, 1, 0))


def go(wire, move, key, **settings):
    return wire.submit(move, payload_of(move, wire.rank, "cpu"), key=key, **settings)


def random_orders(wire, seed):
    """Moves of overlapping groups, in another order on each rank."""
    shared = random.Random(seed)
    moves = {}
    for i in range(60):
        group, n = shared.choice(GROUPS), shared.choice([1, 100, 70_000])
        kinds = [
            AllReduce(group, n, F32),
            AllGather(group, tuple(n + r for r in range(len(group))), F32),
            BroadcastFrom(group, group[-1], n, F32),
        ]
        moves[f"order {seed}.{i}"] = shared.choice(kinds), shared.choice([0, 0, 3])
    mine = [key for key, (move, _) in moves.items() if wire.rank in move.group]
    own = random.Random(f"{seed} {wire.rank}")
    own.shuffle(mine)
    futures = {
        key: go(wire, moves[key][0], key, priority=moves[key][1]) for key in mine
    }
    own.shuffle(mine)
    for key in mine:
        move = moves[key][0]
        same(futures[key].wait(), expected(move, wire.rank, "cpu"))
        assert futures[key].traffic() == predicted(move, wire.rank)
    return moves


def predicted(move, rank):
    return Traffic(move.sent_bytes(rank), move.received_bytes(rank))


def check_one_order(wire, moves):
    """Any two moves that two ranks share were launched the same way round on both."""
    keys = [key for key, _ in wire.launch_order() if key in moves]
    all_keys = [
        found.decode().split(",")
        for found in wire.exchange(",".join(keys).encode(), key="orders")
    ]
    for other in all_keys:
        shared = set(other) & set(keys)
        assert [k for k in keys if k in shared] == [k for k in other if k in shared]


def check_urgent_overtakes(wire):
    """A move that comes after a large one goes between its pieces."""
    bulk = go(wire, BULK, "bulk")
    urgent = go(wire, URGENT, "urgent", priority=1)
    same(urgent.wait(), expected(URGENT, wire.rank, "cpu"))
    same(bulk.wait(), expected(BULK, wire.rank, "cpu"))
    assert bulk.traffic() == predicted(BULK, wire.rank)
    order = [
        launch for launch in wire.launch_order() if launch[0] in ("bulk", "urgent")
    ]
    assert [place for key, place in order if key == "bulk"] == list(range(NUM_CHUNKS))
    assert order[-1] == ("bulk", NUM_CHUNKS - 1), order


def check_mismatch(wire):
    """All members learn it at once, nothing is launched, and the wire goes on."""
    move = AllReduce((0, 1, 2), 4 + (wire.rank == 1), F32)
    with pytest.raises(MoveMismatch, match=r"key 'odd'.*AllReduce of 5"):
        go(wire, move, "odd").wait()
    assert "odd" not in [key for key, _ in wire.launch_order()]
    same(go(wire, BULK, "odd").wait(), expected(BULK, wire.rank, "cpu"))


def check_late(wire):
    """One rank does something else: the others learn who, and what."""
    pair = AllReduce((1, 2), 4, F32)
    wire.exchange(b"", key="before")
    wire.timeout_seconds = 0.8
    found = []
    if wire.rank != 1:
        with pytest.raises(WireTimeout) as caught:
            go(wire, URGENT, "late").wait()
        found.append(str(caught.value))
    else:
        found.append(go(wire, pair, "mine"))
    wire.timeout_seconds = 20
    wire.exchange(b"", key="all timed out")
    if wire.rank == 1:
        # It hears the same as the others did.
        with pytest.raises(WireTimeout) as caught:
            go(wire, URGENT, "late").wait()
        found.append(str(caught.value))
    if wire.rank == 2:
        go(wire, pair, "mine").wait()
    said = found[-1]
    assert "key 'late' over ranks 2, 0, 1" in said
    assert "submitted by ranks 0, 2; not by rank 1, which has submitted 'mine'" in said


def all_checks(inner):
    """One start of processes for all."""
    control = connect_engine(
        TorchStore(default_store(), "order"), inner.rank, 3, timeout_seconds=20
    )
    wire = OrderedWire(inner, control, chunk_bytes=CHUNK_BYTES)
    assert wire.capabilities.order_free
    assert wire.capabilities.priorities
    for check in CHECKS:
        check(wire, "cpu")
    for seed in range(2):
        check_one_order(wire, random_orders(wire, seed))
    check_urgent_overtakes(wire)
    check_mismatch(wire)
    check_late(wire)
    last = go(wire, BULK, "last")
    wire.close()
    assert last.done()
    same(last.wait(), expected(BULK, wire.rank, "cpu"))
    with pytest.raises(WireError, match="key 'x': the wire is closed"):
        go(wire, URGENT, "x")
    wire.close()


@pytest.mark.procs
def test_gloo_takes_any_order():
    run_ranks(3, all_checks, wire_timeout=20)


def ordered(num_ranks, *, joined=None, timeout_seconds=10.0):
    """Wires in threads of this process, over a twin."""
    controls = wires(num_ranks, joined=joined, timeout_seconds=timeout_seconds)
    twin = Twin(num_ranks, timeout_seconds=timeout_seconds)
    made = on_each(
        controls, lambda control: OrderedWire(twin.wire(control.rank), control)
    )
    for wire in made:
        assert isinstance(wire, OrderedWire), wire
    return made


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_rank_is_named_and_the_rest_goes_on(lost):
    joined, all_came = join(3), Barrier(3, timeout=10)
    found = ordered(3, joined=joined)

    def rank(wire):
        go(wire, URGENT, "first").wait()
        if wire.rank == lost:
            all_came.wait()
            return
        future = go(wire, URGENT, "second")
        all_came.wait()
        if wire.rank == 1:
            joined.cut(lost)
        started = time.monotonic()
        with pytest.raises(PeerLost, match=rf"'second'.*rank {lost}\b"):
            future.wait()
        assert time.monotonic() - started < 5
        pair = AllReduce(tuple({0, 1, 2} - {lost}), 4, F32)
        if lost:
            go(wire, pair, "pair").wait()
        else:
            with pytest.raises(PeerLost, match="which orders all launches"):
                go(wire, pair, "pair").wait()

    assert on_each(found, rank) == [None] * 3
    on_each(found, OrderedWire.close)


def test_rank_0_that_closes_first_still_orders_the_others():
    def rank(wire):
        if wire.rank == 0:
            wire.close()
            return
        with pytest.raises(PeerLost, match="rank 0 takes no part: it closed its wire"):
            go(wire, URGENT, "needs 0").wait()
        pair = AllReduce((1, 2), 4, F32)
        for step in range(3):
            same(go(wire, pair, f"{step}").wait(), expected(pair, wire.rank, "cpu"))
        wire.close()

    assert on_each(ordered(3), rank) == [None] * 3


def test_rank_0_that_does_not_answer_is_named(monkeypatch):
    found = ordered(2, timeout_seconds=0.2)
    monkeypatch.setattr("placet.wire.ordered.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("placet.wire.conducting.Conductor.hear", lambda *_: None)
    pair = AllReduce((0, 1), 4, F32)
    with pytest.raises(
        WireTimeout, match="rank 0, which orders all launches, does not"
    ):
        go(found[1], pair, "x").wait()
    with pytest.raises(WireTimeout, match="key 'y'"):
        go(found[1], pair, "y")
    on_each(found, OrderedWire.close)


def test_the_two_wires_join_the_same_ranks():
    controls = wires(2)
    with pytest.raises(
        ValueError, match="inner is rank 1 of 2, control is rank 0 of 2"
    ):
        OrderedWire(Twin(2).wire(1), controls[0])
    for control in controls:
        control.close()


def test_messages_come_back_as_they_were():
    for said in (
        Define(3, (0, 7), "grads.0", "AllReduce(é)", 2**64 - 1, 16),
        Announce(3, 2**40, -5),
        Done(12),
        Expire(9, 0.25),
    ):
        assert unpack(pack(said)) == said
    assert unpack_numbers(pack_numbers([1, 2**63])) == [1, 2**63]
    number, error = unpack_failure(pack_failure(4, "PeerLost", "rank 1"))
    assert (number, type(error), error.args) == (4, PeerLost, ("rank 1",))
