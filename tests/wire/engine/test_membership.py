"""The same wire goes on without the ranks that are gone."""

import threading
import time
from contextlib import suppress

import pytest
import torch

from placet.boxing.moves import AllReduce
from placet.errors import PeerLost, WireError, WireTimeout
from testing.engine_ranks import join, on_each, wires
from tests.wire.conformance import CHECKS

ONES = torch.ones(4)


def over(*group):
    """An all-reduce of four elements over ranks."""
    return AllReduce(group, 4, torch.float32)


@pytest.fixture
def make():
    """Make linked wires, and a way to end a rank; all are closed in the end."""
    made = []

    def start(num_ranks, **settings):
        joined = join(num_ranks)
        made.extend(started := wires(num_ranks, joined=joined, **settings))
        return started, joined.cut

    yield start
    on_each(made, _close)


def _close(wire):
    wire.timeout_seconds = 0.01
    with suppress(WireError):
        wire.close()


def lost(wire, rank):
    """Wait until the wire knows that a rank is gone."""
    with pytest.raises(PeerLost, match=f"rank {rank} is gone"):
        wire.submit(over(*range(wire.num_ranks)), ONES, key="lost").wait()


def reform(wire):
    """Seconds that it took."""
    begun = time.monotonic()
    wire.reform(5)
    return time.monotonic() - begun


def everyone(wire):
    """An all-reduce over all that are left."""
    move = over(*range(wire.num_ranks))
    return wire.submit(move, ONES, key="all").wait()[0].item()


def test_who_waits_in_a_group_without_the_lost_rank_is_told_who_it_was(make):
    (first, second, _), end = make(3)
    future = first.submit(over(0, 1), ONES, key="pair")
    end(2)
    lost(first, 2)
    lost(second, 2)
    reforming = threading.Thread(target=second.reform, args=(10,))
    reforming.start()
    with pytest.raises(PeerLost, match=r"rank 1 .*re-forms .*\(lost: rank 2: "):
        future.wait()
    first.reform(10)
    reforming.join(10)
    assert on_each([first, second], everyone) == [2.0] * 2


def test_survivors_go_on_in_the_same_object(make):
    started, end = make(4)
    old_keys = on_each(started, everyone)
    assert old_keys == [4.0] * 4
    end(1)
    survivors = [started[0], started[2], started[3]]
    on_each(survivors, lost, 1)
    seconds = on_each(survivors, reform)
    assert max(seconds) < 0.5, seconds  # 20 ms where cores are free
    assert [wire.rank for wire in survivors] == [0, 1, 2]
    assert [wire.num_ranks for wire in survivors] == [3] * 3
    assert {wire.hosts for wire in survivors} == {("host0", "host2", "host3")}
    assert on_each(survivors, everyone) == [3.0] * 3
    found = on_each(survivors, lambda wire: wire.exchange(b"%d" % wire.rank, key="k"))
    assert found == [[b"0", b"1", b"2"]] * 3


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_re_formed_wire_conforms(make, check):
    started, end = make(4)
    end(0)
    survivors = started[1:]
    on_each(survivors, reform)
    assert on_each(survivors, check, "cpu") == [None] * 3


def test_a_fresh_epoch_makes_a_broken_group_whole(make):
    started, _ = make(3, timeout_seconds=0.1)
    with pytest.raises(WireTimeout):
        started[0].submit(over(0, 1, 2), ONES, key="k").wait()
    with pytest.raises(WireTimeout, match="failed before"):
        started[0].submit(over(0, 1, 2), ONES, key="x")
    for _ in range(2):
        on_each(started, reform)
        for wire in started:
            wire.timeout_seconds = 5
        assert on_each(started, everyone) == [3.0] * 3


def test_again_and_again_at_once(make):
    started, _ = make(3)

    def twenty_times(wire):
        for _ in range(20):
            wire.reform(5)
            assert everyone(wire) == 3
        for _ in range(20):
            wire.reform(5)
        return everyone(wire)

    assert on_each(started, twenty_times) == [3.0] * 3


def test_the_last_one_is_alone(make):
    started, end = make(3)
    end(2)
    on_each(started[:2], reform)
    end(1)
    lost(started[0], 1)
    started[0].reform(5)
    assert (started[0].rank, started[0].num_ranks) == (0, 1)
    assert everyone(started[0]) == 1


def test_a_further_death_meanwhile(make):
    started, end = make(4)
    end(3)
    survivors = started[:2]
    on_each(started[:3], lost, 3)

    def rank(wire):
        if wire.rank == 1:
            end(2)
        wire.reform(5)
        while wire.num_ranks > 2:
            lost(wire, 2)
            wire.reform(5)
        return everyone(wire)

    assert on_each(survivors, rank) == [2.0] * 2


def test_a_rank_that_does_not_come_is_named(make):
    started, _ = make(3)
    for found in on_each([started[0], started[2]], lambda wire: _error(wire, 0.1)):
        assert isinstance(found, WireTimeout)
        assert "for rank 1, which is connected but did not call reform()" in str(found)
    on_each(started, reform)
    assert on_each(started, everyone) == [3.0] * 3


def _error(wire, seconds):
    try:
        wire.reform(seconds)
    except WireError as error:
        return error


def test_whoever_waits_for_a_rank_that_re_forms_is_told(make):
    started, end = make(3)
    future = started[0].submit(over(0, 1), ONES, key="k")
    end(2)
    re_forming = threading.Thread(target=started[1].reform, args=(5,))
    re_forming.start()
    begun = time.monotonic()
    with pytest.raises(PeerLost, match=r"rank 1 takes no part: .* call reform\(\)"):
        future.wait()
    with pytest.raises(PeerLost, match=r"rank 1 takes no part: .* call reform\(\)"):
        started[0].submit(over(0, 1), ONES, key="x")
    assert time.monotonic() - begun < 2
    started[0].reform(5)
    re_forming.join()
    assert on_each(started[:2], everyone) == [2.0] * 2


def test_what_was_in_flight_fails_and_what_was_done_stays(make):
    started, end = make(3)
    done = [wire.submit(over(0, 1), ONES, key="done") for wire in started[:2]]
    deadline = time.monotonic() + 5
    while not all(future.done() for future in done):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    open_ = started[0].submit(over(0, 1), ONES, key="open")
    end(2)
    on_each(started[:2], reform)
    for future in done:
        assert torch.equal(future.wait(), 2 * ONES)
    with pytest.raises(WireError, match=r"key 'open' .* re-form"):
        open_.wait()
    assert on_each(started[:2], everyone) == [2.0] * 2


def test_rank_that_closed_is_left_out(make):
    started, _ = make(3)
    started[1].close()
    survivors = [started[0], started[2]]
    on_each(survivors, reform)
    assert on_each(survivors, everyone) == [2.0] * 2


def test_messages_name_the_new_ranks(make):
    started, end = make(3)
    heard, came = [], threading.Event()
    started[1].listen("news", lambda rank, data: (heard.append(rank), came.set()))
    end(0)
    on_each(started[1:], reform)
    started[2].tell(0, "news", b"x")
    assert came.wait(5)
    assert heard == [1]
