"""The engine is a wire: what goes well, and what its caller does wrong."""

import gc
import os
import threading
import time
import weakref

import pytest
import torch

from placet.boxing.moves import AllReduce, AllToAll, BroadcastFrom
from placet.errors import WireError
from placet.wire.engine.frames import MESSAGE_BYTES
from placet.wire.engine.wire import start_wire
from placet.wire.interface import Traffic
from testing.engine_ranks import join, on_each, run_engine, wires
from tests.wire.conformance import CHECKS, check_moves, submit_in_two_orders

PAIR = AllReduce((0, 1), 4, torch.float32)
ONES = torch.ones(4)


@pytest.fixture
def pair():
    """Two wires, closed in the end."""
    started = wires(2)
    yield started
    on_each(started, lambda wire: wire.close())


def until(true, seconds=5.0):
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.005)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_engine_conforms(check):
    assert run_engine(3, check, "cpu") == [None] * 3


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_moves_on_any_number_of_ranks(num_ranks):
    assert run_engine(num_ranks, check_moves, "cpu") == [None] * num_ranks


def test_any_order(pair):
    assert pair[0].capabilities.order_free
    assert pair[0].capabilities.priorities
    assert on_each(pair, submit_in_two_orders, "cpu") == ["no error"] * 2


def test_submit_from_several_threads(pair):
    def rank(wire):
        def work(name):
            for step in range(20):
                future = wire.submit(PAIR, ONES * step, key=name)
                assert torch.equal(future.wait(), 2 * ONES * step)
            done.append(name)

        done = []
        threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(done)

    assert on_each(pair, rank) == [4, 4]


def test_wait_from_two_threads_gives_both_the_result(pair):
    future = pair[0].submit(PAIR, ONES, key="k")
    waiting = threading.Thread(target=lambda: found.append(future.wait()))
    found = []
    waiting.start()
    pair[1].submit(PAIR, ONES, key="k")
    assert torch.equal(future.wait(), 2 * ONES)
    waiting.join()
    assert found[0] is future.wait()


def test_traffic_is_told_once_done(pair):
    future = pair[0].submit(PAIR, ONES, key="k")
    with pytest.raises(WireError, match="no traffic to report before"):
        future.traffic()
    pair[1].submit(PAIR, ONES, key="k")
    future.wait()
    assert future.traffic() == Traffic(PAIR.sent_bytes(0), PAIR.received_bytes(0))


@pytest.mark.parametrize("notify", [True, False])
def test_callback_comes_from_the_wires_thread(pair, notify):
    called, names = threading.Event(), []

    def callback(future):
        names.append((threading.current_thread().name, future.done()))
        called.set()

    future = pair[0].submit(PAIR, ONES, key="k", notify=notify)
    future.on_done(callback)
    pair[1].submit(PAIR, ONES, key="k")
    assert called.wait(5)
    assert names == [("placet-attendant", True)]
    future.on_done(callback)
    assert names[1] == (threading.current_thread().name, True)


def test_dropped_future_keeps_its_payload_until_the_end(pair):
    payload = torch.ones(4)
    kept = weakref.ref(payload)
    pair[0].submit(PAIR, payload, key="k")
    del payload
    gc.collect()
    assert kept() is not None
    other = pair[1].submit(PAIR, ONES, key="k")
    assert torch.equal(other.wait(), 2 * ONES)
    until(lambda: gc.collect() is not None and kept() is None)


def test_alone_or_nothing_to_move_needs_no_core():
    (wire,) = wires(1)
    for n in (0, 3):
        move = AllReduce((0,), n, torch.float32)
        future = wire.submit(move, torch.ones(n), key="k")
        assert future.done()
        assert torch.equal(future.wait(), torch.ones(n))
    assert wire.exchange(b"x", key="k") == [b"x"]
    wire.close()


def test_empty_moves_end_at_once(pair):
    move = AllReduce((0, 1), 0, torch.float32)
    future = pair[0].submit(move, torch.empty(0), key="k")
    assert future.done()
    assert future.traffic() == Traffic(0, 0)


def test_exchange_counts_as_control(pair):
    before = pair[0].control_bytes()
    on_each(pair, lambda wire: wire.exchange(b"x" * 1000, key="k"))
    assert pair[0].control_bytes() - before >= 2000
    assert pair[0].counters().control_bytes < before + 2000


# What the caller does wrong.


def test_buffers_elsewhere_are_refused(pair):
    payload = torch.empty(4, device="meta")
    with pytest.raises(ValueError, match=r"payload is on meta; .* give payload.cpu"):
        pair[0].submit(PAIR, payload, key="k")


def test_all_to_all_in_place_is_refused(pair):
    move = AllToAll((0, 1), ((2, 2), (2, 2)), torch.float32)
    with pytest.raises(ValueError, match="cannot write over its payload"):
        pair[0].submit(move, ONES, key="k", out=ONES)


def test_scalar_is_refused_and_says_what_is_needed(pair):
    with pytest.raises(ValueError, match=r"shape \(\); it needs .* shape \(4,\)"):
        pair[0].submit(PAIR, torch.tensor(1.0), key="k")
    pair[0].submit(PAIR, ONES, key="k")
    pair[1].submit(PAIR, ONES, key="k")
    with pytest.raises(ValueError, match="payload is strided"):
        pair[0].submit(PAIR, torch.ones(8)[::2], key="k")


def test_close_finishes_what_is_in_flight():
    first, second = wires(2)
    future = first.submit(PAIR, ONES, key="k")
    closing = threading.Thread(target=first.close)
    closing.start()
    second.submit(PAIR, ONES, key="k").wait()
    closing.join()
    assert torch.equal(future.wait(), 2 * ONES)
    for use in (
        lambda: first.submit(PAIR, ONES, key="k"),
        lambda: first.exchange(b"", key="k"),
        lambda: first.reform(1),
        lambda: first.tell(1, "topic", b""),
    ):
        with pytest.raises(WireError, match="the wire is closed"):
            use()
    first.close()
    second.close()


def test_close_raises_what_nobody_has_seen():
    first, second = wires(2, timeout_seconds=0.1)
    first.submit(PAIR, ONES, key="k")
    with pytest.raises(WireError, match="'k'"):
        first.close()
    second.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused(pair):
    future = pair[0].submit(PAIR, ONES, key="k")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for use in (lambda: pair[0].submit(PAIR, ONES, key="x"), future.wait):
            try:
                use()
            except WireError as error:
                said.append(str(error))
        pair[0].close()
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 10000).decode()
    os.close(read)
    os.close(write)
    assert said.count("this process was forked") == 2
    pair[1].submit(PAIR, ONES, key="k")
    assert torch.equal(future.wait(), 2 * ONES)


def test_ranks_must_fit():
    with pytest.raises(ValueError, match="rank 2 of 2"):
        start_wire(None, rank=2, num_ranks=2, hosts="ab", timeout_seconds=1)
    with pytest.raises(ValueError, match="above 0"):
        start_wire(None, rank=0, num_ranks=2, hosts="ab", timeout_seconds=0)


# Messages.


def test_messages_come_in_order_also_those_before_listening(pair):
    heard, all_came = [], threading.Event()

    def listener(rank, data):
        heard.append((rank, data))
        if data == b"last":
            all_came.set()

    pair[0].tell(1, "news", b"")
    pair[0].tell(1, "news", b"\n\x00")
    pair[0].tell(1, "other", b"x")
    on_each(pair, lambda wire: wire.exchange(b"", key="k"))
    until(lambda: pair[1].listen("news", listener) is None and len(heard) >= 2)
    pair[0].tell(1, "news", b"last")
    assert all_came.wait(5)
    assert heard == [(0, b""), (0, b"\n\x00"), (0, b"last")]


def test_messages_that_cannot_be_are_refused(pair):
    for rank, topic, data, said in (
        (0, "news", b"", "this is rank 0 of 2"),
        (2, "news", b"", "this is rank 0 of 2"),
        (1, "failed", b"", "'failed' is the wire's own"),
        (1, "news", bytes(MESSAGE_BYTES), "exchange.. takes more"),
    ):
        with pytest.raises(ValueError, match=said):
            pair[0].tell(rank, topic, data)
    with pytest.raises(ValueError, match="the wire's own"):
        pair[0].listen("failed", lambda rank, data: None)


@pytest.mark.parametrize("notify", [True, False])
def test_a_callback_that_raises_is_told_and_the_wire_goes_on(pair, notify, monkeypatch):
    told, was_told = [], threading.Event()

    def excepthook(args):
        told.append(str(args.exc_value))
        was_told.set()

    def callback(future):
        raise KeyError("in the callback")

    monkeypatch.setattr(threading, "excepthook", excepthook)
    future = pair[0].submit(PAIR, ONES, key="k", notify=notify)
    future.on_done(callback)
    pair[1].submit(PAIR, ONES, key="k")
    assert was_told.wait(5)
    assert told == ["'in the callback'"]
    futures = [wire.submit(PAIR, ONES, key="x") for wire in pair]
    assert torch.equal(futures[0].wait(), 2 * ONES)


def test_ranks_that_the_wire_does_not_have_are_refused(pair):
    move = AllReduce((0, 7), 4, torch.float32)
    with pytest.raises(ValueError, match="names rank 7, the wire has ranks 0 to 1"):
        pair[0].submit(move, ONES, key="k")


def test_a_listener_that_raises_ends_the_wire(pair):
    def listener(rank, data):
        raise KeyError("in the listener")

    pair[1].listen("news", listener)
    future = pair[1].submit(PAIR, ONES, key="k")
    pair[0].tell(1, "news", b"")
    with pytest.raises(WireError, match=r"failed: KeyError.'in the listener'"):
        future.wait()
    with pytest.raises(WireError, match=r"key 'x' .* attendant failed"):
        pair[1].submit(PAIR, ONES, key="x")


# Debug mode.


@pytest.fixture
def watched():
    started = wires(2, debug=True)
    yield started
    on_each(started, lambda wire: wire.close())


def test_debug_lets_what_is_right_pass(watched):
    x = torch.arange(4.0)
    move = BroadcastFrom((0, 1), 0, 4, torch.bfloat16)
    flat = torch.zeros(8, dtype=torch.bfloat16)
    futures = [
        watched[0].submit(PAIR, x, key="in place", out=x),
        watched[1].submit(PAIR, ONES, key="in place"),
        watched[0].submit(move, flat[:4], key="views"),
        watched[1].submit(move, flat[:4].clone(), key="views", out=flat[4:]),
    ]
    flat[4:].sum()
    for future in futures:
        future.wait()
    assert torch.equal(x, torch.arange(4.0) + 1)


def test_debug_finds_a_payload_changed_in_flight(watched):
    payload = torch.ones(4)
    future = watched[0].submit(PAIR, payload, key="grads.3")
    payload += 1
    watched[1].submit(PAIR, ONES, key="grads.3").wait()
    with pytest.raises(WireError, match=r"'grads.3' .*payload was changed in flight"):
        future.wait()


def test_debug_finds_an_out_written_to_in_flight(watched):
    out = torch.zeros(4)
    future = watched[0].submit(PAIR, ONES, key="k", out=out)
    out.zero_()
    watched[1].submit(PAIR, ONES, key="k").wait()
    with pytest.raises(WireError, match=r"key 'k' .*out was written to in flight"):
        future.wait()


def test_debug_finds_a_change_in_place(watched):
    x = torch.ones(4)
    future = watched[0].submit(PAIR, x, key="k", out=x)
    x += 1
    watched[1].submit(PAIR, ONES, key="k").wait()
    with pytest.raises(WireError, match=r"key 'k' .*payload was changed in flight"):
        future.wait()


def test_debug_result_is_there_as_soon_as_it_is_done(watched):
    out = torch.zeros(4)
    future = watched[0].submit(PAIR, ONES, key="k", out=out)
    watched[1].submit(PAIR, ONES, key="k").wait()
    until(future.done)
    assert torch.equal(out, 2 * ONES)


@pytest.mark.parametrize("name", ["payload", "out"])
def test_debug_finds_a_storage_freed_in_flight(name, watched):
    buffers = {"payload": torch.ones(4), "out": torch.zeros(4)}
    future = watched[0].submit(PAIR, buffers["payload"], key="k", out=buffers["out"])
    buffers[name].untyped_storage().resize_(0)
    watched[1].submit(PAIR, ONES, key="k").wait()
    said = rf"the {name} was resized or freed in flight .from 16 to 0 bytes"
    with pytest.raises(WireError, match=said):
        future.wait()


def test_ranks_are_joined_in_pairs():
    joined = join(3)
    peers = [[link.peer for link in mine] for mine in joined.links]
    assert peers == [[1, 2], [0, 2], [0, 1]]
    joined.cut(1, peer=2)
    ends = {link.peer: link.sockets[0] for link in joined.links[2]}
    assert ends[1].recv(1) == b""
    ends[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[0].recv(1)
    for mine in joined.links:
        for link in mine:
            link.sockets[0].close()
