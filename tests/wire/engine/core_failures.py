"""How every core must fail, and stop; each check takes a function that makes one."""

import json
import threading

import pytest
import torch

from placet.errors import WireError
from placet.wire.engine.core import EventKind, State
from placet.wire.engine.frames import (
    EAGER_BYTES,
    EARLY_BYTES,
    MESSAGE_BYTES,
    SLICE_BYTES,
    FrameKind,
    Header,
)
from tests.wire.engine.core_rig import (
    FINGERPRINT,
    LONG,
    SHORT,
    MakeCore,
    assert_done,
    beside_raw,
    beside_raw_and_core,
    connected,
    event_of,
    random_bytes,
    raw_bytes,
    receiving,
    schedule_of,
    sending,
    submit,
    sum_of_all,
    talk,
)

BULK = 1 << 22
"""More than a socket holds."""


def check_mismatch(make_core: MakeCore) -> None:
    """Data that do not fit the task fail it, and no other."""
    payload = random_bytes(64)
    for fingerprint, num_bytes, expected in (
        (7, 8, 8),
        (FINGERPRINT, 16, 8),
        (7, 8, 0),
    ):
        for is_early in (False, True):
            with beside_raw(make_core) as (core, raw):
                body = b"x" * num_bytes
                if is_early:
                    raw.data(1, body, fingerprint=fingerprint)
                    talk(core, raw)
                # With nothing expected it still waits for READY: it sends too much.
                sends = sending(1, 2 * EAGER_BYTES)
                schedule = schedule_of(receiving(1, expected), sends)
                large = random_bytes(2 * EAGER_BYTES)
                handle = submit(core, 1, schedule, large, payload)
                if not is_early:
                    raw.data(1, body, fingerprint=fingerprint)
                event = event_of(core, EventKind.MISMATCH)
                assert (event.peer, event.handle) == (1, handle)
                assert json.loads(event.data) == {
                    "fingerprint": fingerprint,
                    "lane_bytes": num_bytes,
                    "expected_bytes": expected,
                }
                assert core.wait(handle, LONG) is State.FAILED
                raw.data(1, body, fingerprint=fingerprint)  # read and dropped
                raw.data(2, b"y" * 8)
                other = submit(core, 2, schedule_of(receiving(1, 8)), payload)
                assert_done(core, other)


def check_mismatched_ready(make_core: MakeCore) -> None:
    """READY of something else fails the sender, too."""
    payload = random_bytes(BULK)
    with connected(make_core, 2) as (a, b):
        src = submit(a, 1, schedule_of(sending(1, BULK)), payload, fingerprint=1)
        dst = submit(b, 1, schedule_of(receiving(0, BULK)), payload, fingerprint=2)
        assert a.wait(src, LONG) is State.FAILED
        assert b.wait(dst, LONG) is State.FAILED
        found = json.loads(event_of(a, EventKind.MISMATCH).data)
        assert (found["fingerprint"], found["expected_bytes"]) == (2, 0)
        found = json.loads(event_of(b, EventKind.MISMATCH).data)
        assert found["fingerprint"] == 1


def check_lost(make_core: MakeCore) -> None:
    """A link that breaks fails the tasks that use it; the others go on."""
    payload, out = random_bytes(8), torch.zeros(8, dtype=torch.uint8)
    with beside_raw_and_core(make_core) as (core, raw, other):
        fine = submit(core, 1, schedule_of(receiving(2, 8)), payload, out)
        hit = submit(core, 2, schedule_of(receiving(1, 8)), payload)
        both = schedule_of(receiving(1, 8), receiving(2, 8))
        second = submit(core, 3, both, payload, notify=1)
        raw.read_all()
        raw.close()
        assert core.wait(hit, LONG) is State.FAILED
        assert core.wait(second, LONG) is State.FAILED
        events = [core.next_event(LONG) for _ in range(2)]
        kinds = {event.kind: event for event in events if event}
        assert kinds[EventKind.LOST].peer == 1
        assert b"closed" in kinds[EventKind.LOST].data
        assert kinds[EventKind.FINISHED].handle == second
        assert core.state(fine) is State.PENDING
        assert_done(other, submit(other, 1, schedule_of(sending(0, 8)), payload))
        assert_done(core, fine)
        late = submit(core, 4, schedule_of(sending(1, 8)), payload)
        assert core.wait(late, LONG) is State.FAILED
        core.send(1, b"nobody")
        assert core.next_event(0.0) is None


def check_lost_in_a_frame(make_core: MakeCore) -> None:
    """Nothing of a frame that never ends is lost quietly."""
    payload = torch.zeros(64, dtype=torch.uint8)
    for num_sockets in (1, 3):
        with beside_raw(make_core, num_sockets) as (core, raw):
            handle = submit(core, 1, schedule_of(receiving(1, 64)), payload)
            header = Header(FrameKind.DATA, 0, 1, FINGERPRINT, 0, 64, 64)
            raw.send(header, b"x" * 10)
            raw.close()
            assert event_of(core, EventKind.LOST).peer == 1
            assert core.wait(handle, LONG) is State.FAILED


def check_one_socket_lost(make_core: MakeCore) -> None:
    """A link whose second socket breaks is lost, though the first is fine."""
    with beside_raw(make_core, 3) as (core, raw):
        raw.sockets[1].close()
        assert event_of(core, EventKind.LOST).peer == 1


def check_left(make_core: MakeCore) -> None:
    """After BYE those tasks fail that still need the peer."""
    payload = random_bytes(8)
    with beside_raw_and_core(make_core, 2) as (core, raw, other):
        both = schedule_of(receiving(1, 8), receiving(2, 8))
        done = submit(core, 1, both, payload, torch.zeros_like(payload))
        undone = submit(core, 2, schedule_of(receiving(1, 8)), payload)
        raw.data(1, b"x" * 8)
        raw.send(Header(FrameKind.BYE, 0))
        raw.close()
        assert core.wait(undone, LONG) is State.FAILED
        assert event_of(core, EventKind.LEFT).peer == 1
        assert core.next_event(SHORT) is None
        assert core.state(done) is State.PENDING
        assert_done(other, submit(other, 1, schedule_of(sending(0, 8)), payload))
        assert_done(core, done)


def check_left_with_frames_on_their_way(make_core: MakeCore) -> None:
    """What a peer has not taken when it leaves has not arrived."""
    payload = random_bytes(SLICE_BYTES)
    with beside_raw(make_core) as (core, raw):
        for collective in range(BULK // SLICE_BYTES):
            raw.ready(collective)
        talk(core, raw)
        handles = [
            submit(core, x, schedule_of(sending(1, SLICE_BYTES)), payload)
            for x in range(BULK // SLICE_BYTES)
        ]
        raw.has_something()
        raw.send(Header(FrameKind.BYE, 0))
        raw.close()
        states = [core.wait(handle, LONG) for handle in handles]
        assert State.PENDING not in states
        assert State.FAILED in states


def check_fail(make_core: MakeCore) -> None:
    """A failed task's buffers are the caller's; its frames go on from a copy."""
    payload = random_bytes(BULK)
    wanted = raw_bytes(payload)
    with beside_raw(make_core) as (core, raw):
        out = torch.zeros(8 * EAGER_BYTES, dtype=torch.uint8)
        raw.ready(1)
        talk(core, raw)
        both = schedule_of(sending(1, BULK), receiving(1, len(out)))
        handle = submit(core, 1, both, payload, out, notify=1)
        raw.has_something()
        core.fail(handle)
        payload.fill_(0)
        assert core.state(handle) is State.FAILED
        assert event_of(core, EventKind.FINISHED).handle == handle
        raw.data(1, b"x" * len(out))  # more than could be set aside
        talk(core, raw)
        assert out.count_nonzero() == 0
        other = submit(core, 2, schedule_of(sending(1, 8)), random_bytes(8))
        frames = [x for x in raw.read_all() if x[0].kind is FrameKind.DATA]
        assert_done(core, other)
        assert [header.collective for header, _ in frames[-2:]] == [1, 2]
        sent = b"".join(body for header, body in frames if header.collective == 1)
        assert 0 < len(sent) < BULK
        assert sent == wanted[: len(sent)]


def check_advance(make_core: MakeCore) -> None:
    """A new epoch begins in the middle of frames."""
    payload = random_bytes(BULK)
    wanted = raw_bytes(payload)
    with beside_raw(make_core) as (core, raw):
        raw.ready(1)
        raw.data(3, b"old" * 8)
        talk(core, raw)
        handle = submit(core, 1, schedule_of(sending(1, BULK)), payload)
        raw.has_something()
        core.advance(1, frozenset())
        payload.fill_(0)
        assert core.wait(handle, LONG) is State.FAILED
        raw.data(4, b"old" * 8)  # of an epoch that is over
        out = torch.zeros(24, dtype=torch.uint8)
        handles = [
            submit(core, x, schedule_of(receiving(1, 24)), payload, out) for x in (3, 4)
        ]
        frames = raw.read_all()
        talk(core, raw)
        assert core.wait(handles[0], 0.0) is State.PENDING
        assert core.wait(handles[1], 0.0) is State.PENDING
        old = [body for header, body in frames if header.epoch == 0]
        sent = b"".join(old)
        assert 0 < len(sent) < BULK
        assert sent == wanted[: len(sent)]
        for collective, handle in zip((3, 4), handles, strict=True):
            raw.data(collective, b"new" * 8, epoch=1)
            assert_done(core, handle)
            assert raw_bytes(out) == b"new" * 8


def check_advance_behind(make_core: MakeCore) -> None:
    """A peer that has advanced first is heard later; what it sends is bounded."""
    payload = torch.zeros(24, dtype=torch.uint8)
    with beside_raw(make_core) as (core, raw):
        raw.data(1, b"new" * 8, epoch=1)
        raw.ready(2, epoch=1)
        old = submit(core, 1, schedule_of(receiving(1, 24)), payload)
        handshake = schedule_of(sending(1, 2 * EAGER_BYTES))
        assert core.wait(old, SHORT) is State.PENDING
        core.advance(1, frozenset())
        assert core.state(old) is State.FAILED
        assert_done(core, submit(core, 1, schedule_of(receiving(1, 24)), payload))
        assert raw_bytes(payload) == b"new" * 8
        sent = submit(core, 2, handshake, random_bytes(2 * EAGER_BYTES))
        assert_done(core, sent)
        for collective in range(EARLY_BYTES // EAGER_BYTES):
            raw.data(collective, bytes(EAGER_BYTES), epoch=2)
        assert core.next_event(SHORT) is None
        raw.data(99, b"x", epoch=2)
        assert event_of(core, EventKind.LOST).peer == 1


def check_advance_without(make_core: MakeCore) -> None:
    """Who is left out finds its link closed; the others go on, their accounts new."""
    payload = random_bytes(EAGER_BYTES)
    with connected(make_core, 3) as cores:
        for collective in range(EARLY_BYTES // EAGER_BYTES):
            submit(cores[0], collective, schedule_of(sending(1, EAGER_BYTES)), payload)
        for core in cores[:2]:
            core.advance(1, frozenset({2}))
        for _ in range(2):
            event = cores[2].next_event(LONG)
            assert event is not None
            assert event.kind in (EventKind.LOST, EventKind.LEFT)
        early = submit(cores[0], 501, schedule_of(sending(1, 8)), payload)
        assert_done(cores[0], early)
        outs = [torch.zeros_like(payload) for _ in range(2)]
        handles = [
            submit(core, 500, sum_of_all(me, (0, 1), payload), payload, out)
            for me, (core, out) in enumerate(zip(cores[:2], outs, strict=True))
        ]
        for core, handle, out in zip(cores[:2], handles, outs, strict=True):
            assert_done(core, handle)
            assert torch.equal(out, payload + payload)


def check_messages(make_core: MakeCore) -> None:
    """Messages of any size come in order, both ways, beside data."""
    payload = random_bytes(SLICE_BYTES)
    messages = [b"", b"x", bytes(MESSAGE_BYTES), *(b"%d" % i for i in range(200))]
    with connected(make_core, 2, 2) as cores:
        for message in messages:
            for me, core in enumerate(cores):
                core.send(1 - me, message)
        handles = [
            submit(core, 1, sum_of_all(me, (0, 1), payload), payload, payload.clone())
            for me, core in enumerate(cores)
        ]
        for me, core in enumerate(cores):
            for message in messages:
                event = event_of(core, EventKind.MESSAGE)
                assert event.peer == 1 - me
                assert event.data == message
            assert_done(core, handles[me])
        assert cores[0].counters().control_bytes > 2 * MESSAGE_BYTES


def check_wait(make_core: MakeCore) -> None:
    """Waiting ends in time, in any thread; who has submitted is known."""
    payload = random_bytes(8)
    with connected(make_core, 3) as cores:
        first = submit(cores[0], 1, sum_of_all(0, (0, 1, 2), payload), payload)
        assert cores[0].wait(first, 0.0) is State.PENDING
        assert cores[0].wait(first, SHORT) is State.PENDING
        assert cores[0].heard(first) == frozenset()
        second = submit(cores[1], 1, sum_of_all(1, (0, 1, 2), payload), payload.clone())
        cores[1].send(0, b"submitted")
        event_of(cores[0], EventKind.MESSAGE)
        assert cores[0].heard(first) == frozenset({1})
        states: list[State] = []
        threads = [
            threading.Thread(target=lambda: states.append(cores[0].wait(first, LONG)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        third = submit(cores[2], 1, sum_of_all(2, (0, 1, 2), payload), payload.clone())
        for thread in threads:
            thread.join(LONG)
        assert states == [State.DONE] * 3
        assert cores[0].heard(first) == frozenset({1, 2})
        assert_done(cores[1], second)
        assert_done(cores[2], third)


def check_close(make_core: MakeCore) -> None:
    """Closing fails what is pending, says BYE, and refuses what comes later."""
    payload = random_bytes(8)
    num_threads = threading.active_count()
    with connected(make_core, 3) as cores:
        done = submit(cores[0], 1, schedule_of(sending(1, 8)), payload)
        pending = submit(cores[0], 2, schedule_of(receiving(1, 8)), payload)
        cores[0].send(1, b"last words")
        cores[0].close()
        cores[0].close()
        assert cores[0].state(done) is State.DONE
        assert cores[0].wait(pending, LONG) is State.FAILED
        with pytest.raises(WireError, match="closed"):
            submit(cores[0], 3, schedule_of(), payload)
        with pytest.raises(WireError, match="closed"):
            cores[0].send(1, b"too late")
        assert event_of(cores[1], EventKind.MESSAGE).data == b"last words"
        assert event_of(cores[1], EventKind.LEFT).peer == 0
        assert event_of(cores[2], EventKind.LEFT).peer == 0
    assert threading.active_count() == num_threads


def check_close_beside_the_deaf(make_core: MakeCore) -> None:
    """A peer that reads nothing holds closing up for about a second, not more."""
    payload = random_bytes(BULK)
    with beside_raw(make_core) as (core, raw):
        raw.ready(1)
        talk(core, raw)
        handle = submit(core, 1, schedule_of(sending(1, BULK)), payload)
        raw.has_something()
        closing = threading.Thread(target=core.close)
        closing.start()
        closing.join(LONG)
        assert not closing.is_alive()
        assert core.wait(handle, 0.0) is State.FAILED


def check_last_words(make_core: MakeCore) -> None:
    """A core that closes reads on, for a cut connection loses what it sent last."""
    with beside_raw(make_core) as (core, raw):
        handle = submit(core, 1, schedule_of(sending(1, 8)), random_bytes(8))
        assert_done(core, handle)
        closing = threading.Thread(target=core.close)
        closing.start()
        frames = raw.read_all(LONG)  # until the end
        assert [x.kind for x, _ in frames] == [FrameKind.DATA, FrameKind.BYE]
        raw.ready(1)
        raw.close()
        closing.join(LONG)


CHECKS = (
    check_mismatch,
    check_mismatched_ready,
    check_lost,
    check_lost_in_a_frame,
    check_one_socket_lost,
    check_left,
    check_left_with_frames_on_their_way,
    check_fail,
    check_advance,
    check_advance_behind,
    check_advance_without,
    check_messages,
    check_wait,
    check_close,
    check_close_beside_the_deaf,
    check_last_words,
)
