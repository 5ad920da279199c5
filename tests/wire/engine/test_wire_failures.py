"""Whatever goes wrong, every rank that waits is told, soon and in words."""

import re
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
import torch

from placet.boxing.moves import AllReduce, BroadcastFrom
from placet.errors import MoveMismatch, PeerLost, WireError, WireTimeout
from placet.wire.engine.flight import flight_name, load
from placet.wire.engine.keys import full_text, short_texts
from testing.engine_ranks import join, on_each, wires
from tests.wire.conformance import check_late, check_mismatch

ALL = (0, 1, 2)
TRIO = AllReduce(ALL, 4, torch.float32)
ONES = torch.ones(4)


@pytest.fixture
def make():
    """Make wires; all are closed in the end."""
    made = []

    def start(num_ranks=3, **settings):
        made.extend(started := wires(num_ranks, **settings))
        return started

    yield start
    on_each(made, _close)


def _close(wire):
    wire.timeout_seconds = 0.01
    with suppress(WireError):
        wire.close()


def run(wire, keys, move=TRIO):
    """Submit and wait, key by key; the error and when it came."""
    try:
        for key in keys:
            wire.submit(move, torch.ones(4), key=key).wait()
    except WireError as error:
        return error, time.monotonic()
    return None, time.monotonic()


def each(started, keys_of):
    """`run` on every wire, with the keys of its rank."""
    return on_each(started, lambda wire: run(wire, keys_of[wire.rank]))


# Deadlines.


def test_late_rank_is_named_on_all_that_wait(make):
    started = time.monotonic()
    first, late, third = on_each(make(timeout_seconds=0.3), check_late, "cpu")
    assert time.monotonic() - started < 2
    assert late == "no error"
    for found in (first, third):
        assert found.startswith("WireTimeout rank ")
        assert "'late' over ranks 0, 1, 2 has not ended after 0." in found
        assert "submitted by ranks 0, 2, not by rank 1" in found
        assert "rank 1 waits for 'exchange all timed out: lengths'" in found


def test_rank_that_computes_is_told_from_one_that_is_stopped(make):
    first, second, third = make(timeout_seconds=0.2)
    stopped = threading.Event()
    third.listen("stop", lambda rank, data: stopped.wait(10))
    first.tell(2, "stop", b"")
    begun = time.monotonic()
    (error, ended), (other, other_ended) = on_each([first, second], run, ["k"])
    stopped.set()
    assert max(ended, other_ended) < begun + 0.2 + 1
    for found in (error, other):
        assert isinstance(found, WireTimeout)
        assert "rank 2 gave no answer: paused or dead" in str(found)


def test_slow_computation_is_said_to_compute(make):
    first, _, third = make(timeout_seconds=0.1)
    for error, _ in on_each([first, third], run, ["k"]):
        assert "rank 1 computes; finished nothing so far" in str(error)


def test_application_cycle_is_named(make):
    started = make(2, timeout_seconds=1.0)
    pair = AllReduce((0, 1), 4, torch.float32)
    keys = {0: ["a", "b"], 1: ["b", "a"]}
    found = on_each(started, lambda wire: run(wire, keys[wire.rank], pair))
    for error, _ in found:
        assert isinstance(error, WireTimeout)
        assert "likely cause: an application cycle" in str(error)


def test_deadline_of_what_nobody_waits_for(make):
    first, *_ = make(timeout_seconds=0.1)
    ended = threading.Event()
    future = first.submit(TRIO, ONES, key="k", notify=True)
    future.on_done(lambda future: ended.set())
    assert ended.wait(5)
    with pytest.raises(WireTimeout, match="'k' over ranks 0, 1, 2"):
        future.wait()
    with pytest.raises(WireTimeout, match="'k' over ranks 0, 1, 2"):
        future.wait()


def test_failed_group_refuses_and_tells(make):
    first, second, third = make(timeout_seconds=0.1)
    on_each([first, third], run, ["k"])
    second.timeout_seconds = 30
    begun = time.monotonic()
    # Whether the word of the failure comes before this submission or after it: the
    # others submit nothing more on this group.
    error, _ = run(second, ["other"])
    with pytest.raises(WireTimeout, match=r"'x' .*this group failed before: .*'k'"):
        first.submit(TRIO, ONES, key="x")
    assert isinstance(error, WireTimeout)
    assert time.monotonic() - begun < 2
    pair = AllReduce((0, 2), 4, torch.float32)
    assert on_each([first, third], run, ["k"], pair)[0][0] is None


def test_refusal_ends_what_was_submitted_before_the_word_came(make):
    first, second, third = make(timeout_seconds=0.2)
    second.timeout_seconds = 30
    ahead = second.submit(TRIO, ONES, key="x")
    on_each([first, third], run, ["k"])
    begun = time.monotonic()
    with pytest.raises(WireTimeout, match="this group failed before"):
        first.submit(TRIO, ONES, key="x")
    with pytest.raises(WireTimeout, match=r"'x' .*this group failed before: .*'k'"):
        ahead.wait()
    assert time.monotonic() - begun < 1


# Members that disagree.


def test_mismatch_reaches_all_with_what_each_submitted(make):
    for found in on_each(make(), check_mismatch, "cpu"):
        assert found.startswith("MoveMismatch key 'grads.3' over ranks 0, 1, 2: ")
        assert "ranks 0, 2 submitted AllReduce of 4 torch.float32 over" in found
        assert "rank 1 submitted AllReduce of 5 torch.float32 over" in found


@pytest.mark.parametrize(
    "other",
    [
        AllReduce(ALL, 4, torch.int32),
        AllReduce(ALL, 4, torch.float32, "max"),
        AllReduce(ALL, 4, torch.float32, "sum", "exchange"),
        BroadcastFrom(ALL, 0, 4, torch.float32),
    ],
    ids=["dtype", "reduction", "algorithm", "kind"],
)
def test_mismatch_of_any_sort_is_never_a_wrong_sum(make, other):
    def rank(wire):
        move = other if wire.rank == 2 else TRIO
        try:
            return wire.submit(move, torch.ones(4, dtype=move.dtype), key="k").wait()
        except WireError as error:
            return error

    for found in on_each(make(timeout_seconds=1), rank):
        assert isinstance(found, MoveMismatch)
        texts = short_texts([full_text(other), full_text(TRIO)])
        assert f"rank 2 submitted {texts[0]}" in str(found)


def test_member_that_comes_after_a_mismatch_fails_at_once(make):
    first, second, third = make()
    five = AllReduce(ALL, 5, torch.float32)
    futures = [
        first.submit(TRIO, ONES, key="k"),
        second.submit(five, torch.ones(5), key="k"),
    ]
    for future in futures:
        with pytest.raises(MoveMismatch, match=r"rank 1 submitted .* of 5 "):
            future.wait()
    found = r"rank 0 submitted .*rank 1 submitted .*; rank 2 submitted .*int32"
    six = AllReduce(ALL, 6, torch.int32)
    with pytest.raises(MoveMismatch, match=found):
        third.submit(six, torch.ones(6, dtype=torch.int32), key="k").wait()
    with pytest.raises(MoveMismatch, match="this group failed before"):
        third.submit(TRIO, ONES, key="next")


# Ranks that are gone.


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_lost_rank_is_an_error_at_once_wherever_it_is(make, num_ranks):
    joined = join(num_ranks)
    started = make(num_ranks, joined=joined)
    move = AllReduce(tuple(range(num_ranks)), 4, torch.float32)
    waiting = threading.Barrier(num_ranks)

    def rank(wire):
        wire.submit(move, ONES, key="first").wait()
        waiting.wait()
        if wire.rank == 1:
            time.sleep(0.05)  # the others are in `wait` by then
            joined.cut(1)
            return time.monotonic()
        return run(wire, ["second"], move)

    results = on_each(started, rank)
    for place, found in enumerate(results):
        if place == 1:
            continue
        error, when = found
        assert isinstance(error, PeerLost)
        assert "key 'second' (AllReduce" in str(error)
        assert re.search("rank 1 is gone: .*connection closed", str(error))
        assert when - results[1] < 0.5  # 50 ms where cores are free
        with pytest.raises(PeerLost, match=r"key 'third' .*rank 1 is gone"):
            started[place].submit(move, ONES, key="third")
        with pytest.raises(PeerLost, match="rank 1 is gone"):
            started[place].exchange(b"", key="k")


def test_groups_without_the_lost_rank_go_on(make):
    joined = join(3)
    started = make(joined=joined)
    pair = AllReduce((0, 2), 4, torch.float32)
    joined.cut(1)
    survivors = [started[0], started[2]]
    assert [found[0] for found in on_each(survivors, run, ["k"] * 3, pair)] == [
        None
    ] * 2


def test_link_cut_between_two_is_told_to_the_third(make):
    joined = join(3)
    started = make(joined=joined)
    futures = [wire.submit(TRIO, ONES, key="k") for wire in started[:2]]
    begun = time.monotonic()
    joined.cut(0, peer=2)
    with pytest.raises(PeerLost, match="rank 2 is gone"):
        futures[0].wait()
    with pytest.raises(PeerLost, match="rank 2 is gone"):
        futures[1].wait()
    assert time.monotonic() - begun < 1


def test_rank_that_closed_takes_no_part(make):
    first, second, third = make()
    future = first.submit(TRIO, ONES, key="k")
    begun = time.monotonic()
    second.close()
    with pytest.raises(PeerLost, match="rank 1 takes no part: it closed its wire"):
        future.wait()
    assert time.monotonic() - begun < 2
    with pytest.raises(PeerLost, match="rank 1 takes no part: it closed its wire"):
        first.submit(TRIO, ONES, key="next").wait()
    pair = AllReduce((0, 2), 4, torch.float32)
    assert on_each([first, third], run, ["k"], pair)[0][0] is None


def test_what_a_rank_sent_before_it_closed_still_counts(make):
    first, second, third = make()
    move = BroadcastFrom(ALL, 1, 4, torch.float32)
    second.submit(move, 2 * ONES, key="k").wait()
    second.close()
    time.sleep(0.05)  # until the good-bye has come, most likely; right in any case
    assert first.submit(move, ONES, key="k").wait().tolist() == [2.0] * 4
    assert third.submit(move, ONES, key="k").wait().tolist() == [2.0] * 4


def test_rank_may_close_when_it_is_done(make):
    started = make()
    move = BroadcastFrom(ALL, 1, 1 << 18, torch.float32)

    def rank(wire):
        future = wire.submit(move, torch.ones(1 << 18), key="k")
        if wire.rank == 1:
            wire.close()
            return None
        return future.wait().sum().item()

    assert on_each(started, rank) == [1 << 18, None, 1 << 18]


def test_rank_that_talks_nonsense_is_lost(make):
    joined = join(3)
    started = make(joined=joined)
    future = started[0].submit(TRIO, ONES, key="k")
    # As another program would that had the secret.
    started[1]._core.send(0, b"no JSON\n")
    with pytest.raises(PeerLost, match=r"rank 1 .* a message that is none of ours"):
        future.wait()


def test_flight_record_is_written(make, tmp_path):
    started = make(2, timeout_seconds=0.1, report_folder=tmp_path)
    pair = AllReduce((0, 1), 4, torch.float32)
    on_each(started, partial(run, keys=["good"], move=pair))
    with pytest.raises(WireTimeout):
        started[0].submit(pair, ONES, key="bad").wait()
    notes = load(tmp_path / flight_name(0)).notes
    found = [(note.event, note.key) for note in notes]
    for event in ("submit", "done"):
        assert (event, "good") in found
    for event in ("submit", "wait", "failed"):
        assert (event, "bad") in found
    (failed,) = [note for note in notes if note.event == "failed"]
    assert failed.fields["error"] == "WireTimeout"
    assert failed.fields["group"] == [0, 1]
