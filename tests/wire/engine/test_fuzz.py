"""A peer that sends nonsense is cut off, with a clear word, and costs no memory."""

import random
import resource
import time
import tracemalloc

import pytest
import torch

from placet.wire.engine.core import Core, EventKind, Link
from placet.wire.engine.frames import (
    EAGER_BYTES,
    EARLY_BYTES,
    HEADER,
    MESSAGE_BYTES,
    SLICE_BYTES,
    FrameKind,
    Header,
    pack,
)
from placet.wire.engine.native.core import NativeCore
from placet.wire.engine.plain.core import PlainCore
from tests.wire.engine.core_rig import (
    FINGERPRINT,
    LONG,
    MakeCore,
    RawPeer,
    assert_done,
    beside_raw,
    event_of,
    receiving,
    schedule_of,
    socket_pairs,
    submit,
)

CORES: tuple[MakeCore, ...] = (PlainCore, NativeCore)

SUBMITTED = 7
"""A collective that the core under attack waits for: 4000 bytes, in elements of 4."""

PEERS_AT_ONCE = 50
"""Each core is attacked by so many, one bad stream each."""


def number_for(peer: int) -> int:
    """The collective that peer takes part in; no few flipped bits give another's."""
    return (peer + 1) * 0x9E3779B97F4A7C15 % (1 << 64)


def random_header(rng: random.Random, collective: int) -> Header:
    """A header that may be right, or not, in any field."""
    return Header(
        rng.choice(tuple(FrameKind)),
        rng.choice((0, 0, 0, 1, rng.getrandbits(32))),
        rng.choice((collective, 8, rng.getrandbits(64))),
        rng.choice((FINGERPRINT, rng.getrandbits(64))),
        rng.choice((0, 0, 4, rng.getrandbits(64))),
        rng.choice((4000, 4000, rng.getrandbits(64))),
        rng.choice((0, 4, 3, 4000, SLICE_BYTES + 1, rng.getrandbits(32))),
    )


def good_frame(collective: int) -> bytes:
    """All that the core waits for."""
    header = Header(FrameKind.DATA, 0, collective, FINGERPRINT, 0, 4000, 4000)
    return pack(header) + bytes(4000)


def noise(rng: random.Random, collective: int) -> bytes:
    """Bytes that never were a frame, enough for a header."""
    return rng.randbytes(rng.randint(HEADER.size, 200))


def little_noise(rng: random.Random, collective: int) -> bytes:
    """Too little for a header."""
    return rng.randbytes(rng.randint(1, HEADER.size - 1))


def flipped(rng: random.Random, collective: int) -> bytes:
    """A good frame, with one to three bits of its header flipped."""
    frame = bytearray(good_frame(collective))
    for _ in range(rng.randint(1, 3)):
        frame[rng.randrange(HEADER.size)] ^= 1 << rng.randrange(8)
    return bytes(frame)


def wrong_fields(rng: random.Random, collective: int) -> bytes:
    """Some frames of random fields, with bodies that may be too short."""
    parts = []
    for _ in range(rng.randint(1, 4)):
        header = random_header(rng, collective)
        parts.append(pack(header) + bytes(min(header.num_bytes, 5000)))
    return b"".join(parts)


def huge(rng: random.Random, collective: int) -> bytes:
    """A frame that claims up to 4 GiB."""
    kind = rng.choice(tuple(FrameKind))
    num_bytes = rng.randint(max(SLICE_BYTES, MESSAGE_BYTES) + 1, (1 << 32) - 1)
    lane_bytes = rng.choice((num_bytes, (1 << 64) - 1))
    return pack(Header(kind, 0, collective, FINGERPRINT, 0, lane_bytes, num_bytes))


def truncated(rng: random.Random, collective: int) -> bytes:
    """A good frame that stops somewhere."""
    whole = good_frame(collective)
    return whole[: rng.randrange(1, len(whole))]


REFUSED = (noise, huge)
"""These a core must refuse by itself, while the peer is still there."""

ATTACKS = (*REFUSED, little_noise, flipped, wrong_fields, truncated)


def attack(make_core: MakeCore, seed: int, num_frames: int) -> None:
    """Bad streams, each from a peer of its own; every link ends, and says why."""
    rng = random.Random(seed)
    for _ in range(num_frames // PEERS_AT_ONCE):
        pairs = [socket_pairs(1) for _ in range(PEERS_AT_ONCE + 1)]
        core = make_core(99, [Link(i, ours) for i, (ours, _) in enumerate(pairs)])
        raws = [RawPeer(theirs) for _, theirs in pairs]
        out = torch.zeros(1000, dtype=torch.int32)
        for peer in range(PEERS_AT_ONCE + 1):
            schedule = schedule_of(receiving(peer, 4000), dtype=out.dtype)
            handle = submit(core, number_for(peer), schedule, out)
        for peer, raw in enumerate(raws[:-1]):
            bad = rng.choice(ATTACKS)
            raw.sockets[0].sendall(bad(rng, number_for(peer)))
            if bad not in REFUSED:
                raw.close()
        assert_all_end(core, f"seed {seed}")
        # Nobody else takes harm.
        raws[-1].sockets[0].sendall(good_frame(number_for(PEERS_AT_ONCE)))
        assert_done(core, handle)
        for raw in raws:
            raw.close()
        core.close()


def assert_all_end(core: Core, seed: str) -> None:
    """All bad peers are cut off."""
    ended: set[int] = set()
    by = time.monotonic() + LONG
    while len(ended) < PEERS_AT_ONCE:
        event = core.next_event(by - time.monotonic())
        assert event is not None, f"{seed}: only {sorted(ended)} ended"
        if event.kind in (EventKind.LOST, EventKind.LEFT):
            ended.add(event.peer)
            assert event.data or event.kind is EventKind.LEFT, seed
    assert PEERS_AT_ONCE not in ended, seed


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("make_core", CORES, ids=lambda x: x.__name__)
def test_fuzz_malformed_frames(make_core):
    attack(make_core, seed=1, num_frames=PEERS_AT_ONCE)
    before = peak_bytes()
    attack(make_core, seed=2, num_frames=2000)
    assert peak_bytes() - before < 64 << 20


@pytest.mark.prove
@pytest.mark.parametrize("make_core", CORES, ids=lambda x: x.__name__)
@pytest.mark.parametrize("seed", range(10, 20))
def test_fuzz_malformed_frames_at_length(make_core, seed):
    attack(make_core, seed=0, num_frames=PEERS_AT_ONCE)
    before = peak_bytes()
    attack(make_core, seed=seed, num_frames=10_000)
    assert peak_bytes() - before < 64 << 20


CONTINUED = Header(FrameKind.DATA, 0, SUBMITTED, FINGERPRINT, 0, 4000, 400)

RULES = {
    "magic": (b"\0" * HEADER.size, b"not a frame"),
    "kind": (pack(Header(9, 0)), b"kind"),  # type: ignore[arg-type]
    "ready with a body": (pack(Header(FrameKind.READY, 0, num_bytes=1)), b"bytes"),
    "message too long": (
        pack(Header(FrameKind.CONTROL, 0, num_bytes=MESSAGE_BYTES + 1)),
        b"bytes",
    ),
    "beyond the lane": (
        pack(Header(FrameKind.DATA, 0, 8, FINGERPRINT, 8, 10, 4)) + b"data",
        b"lane",
    ),
    "not from the start": (
        pack(Header(FrameKind.DATA, 0, SUBMITTED, FINGERPRINT, 4, 4000, 4)) + b"data",
        b"lane",
    ),
    "a gap": (
        pack(CONTINUED)
        + bytes(400)
        + pack(Header(FrameKind.DATA, 0, SUBMITTED, FINGERPRINT, 404, 4000, 4))
        + b"data",
        b"lane",
    ),
    "another lane": (
        pack(CONTINUED)
        + bytes(400)
        + pack(Header(FrameKind.DATA, 0, SUBMITTED, FINGERPRINT, 400, 4004, 4))
        + b"data",
        b"lane",
    ),
    "half an element": (
        pack(Header(FrameKind.DATA, 0, SUBMITTED, FINGERPRINT, 0, 4000, 3)) + b"dat",
        b"element",
    ),
    "an early gap": (
        pack(Header(FrameKind.DATA, 0, 8, 1, 0, 100, 4))
        + b"data"
        + pack(Header(FrameKind.DATA, 0, 8, 1, 8, 100, 4))
        + b"data",
        b"lane",
    ),
    "another early fingerprint": (
        pack(Header(FrameKind.DATA, 0, 8, 1, 0, 100, 4))
        + b"data"
        + pack(Header(FrameKind.DATA, 0, 8, 2, 4, 100, 4))
        + b"data",
        b"lane",
    ),
    "too much early": (
        pack(Header(FrameKind.DATA, 0, 8, 1, 0, 1 << 20, EAGER_BYTES + 1))
        + bytes(EAGER_BYTES + 1),
        b"READY",
    ),
    "too much early in all": (
        b"".join(
            pack(Header(FrameKind.DATA, 0, 100 + i, 1, 0, EAGER_BYTES, EAGER_BYTES))
            + bytes(EAGER_BYTES)
            for i in range(EARLY_BYTES // EAGER_BYTES + 1)
        ),
        b"READY",
    ),
}


@pytest.mark.parametrize("make_core", CORES, ids=lambda x: x.__name__)
@pytest.mark.parametrize("rule", RULES)
def test_fuzz_each_rule_is_kept(make_core, rule):
    stream, word = RULES[rule]
    out = torch.zeros(1000, dtype=torch.int32)
    with beside_raw(make_core) as (core, raw):
        submit(core, SUBMITTED, schedule_of(receiving(1, 4000), dtype=out.dtype), out)
        raw.sockets[0].settimeout(LONG)
        raw.sockets[0].sendall(stream)
        event = event_of(core, EventKind.LOST)
        assert event.peer == 1
        assert word in event.data, event.data


def test_fuzz_memory_is_not_reserved_before_the_header_is_checked():
    tracemalloc.start()
    try:
        attack(PlainCore, seed=3, num_frames=PEERS_AT_ONCE)
        assert tracemalloc.get_traced_memory()[1] < PEERS_AT_ONCE * 2 * SLICE_BYTES
    finally:
        tracemalloc.stop()
