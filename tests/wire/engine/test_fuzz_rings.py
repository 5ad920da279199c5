"""Nonsense in the memory that two processes share: the link ends, nothing else does."""

import contextlib
import mmap
import os
import random
import socket
import struct

import pytest
import torch

from placet.wire.engine.connect import MEMORY_BYTES
from placet.wire.engine.core import EventKind, Link
from placet.wire.engine.frames import HEADER, SLICE_BYTES, FrameKind, Header, pack
from placet.wire.engine.native.core import NativeCore
from tests.wire.engine.core_rig import (
    FINGERPRINT,
    assert_done,
    event_of,
    receiving,
    schedule_of,
    submit,
)
from tests.wire.engine.test_fuzz import (
    ATTACKS,
    PEERS_AT_ONCE,
    assert_all_end,
    good_frame,
    number_for,
    peak_bytes,
)

HEAD, TAIL, READER_SLEEPS, WRITER_SLEEPS = 0, 64, 128, 192
"""Where these lie in a ring's memory, in bytes; see native/ring.h."""

DATA_START = 4096
CAPACITY = MEMORY_BYTES - DATA_START


class RingPeer:
    """The other end of a link over shared memory; the test plays every byte."""

    def __init__(self, number: int) -> None:
        ours, self.socket = socket.socketpair()
        to_us, from_us = (os.memfd_create("ring") for _ in range(2))
        for memory in (to_us, from_us):
            os.ftruncate(memory, MEMORY_BYTES)
        self.incoming = mmap.mmap(to_us, MEMORY_BYTES)
        self.outgoing = mmap.mmap(from_us, MEMORY_BYTES)
        self.position = 0
        self.link = Link(
            number,
            (ours,),
            send_memory=to_us,
            receive_memory=from_us,
            memory_bytes=MEMORY_BYTES,
        )

    def write(self, data: bytes) -> None:
        """Write bytes as the core writes frames, and ring the bell."""
        data += bytes(-len(data) % 16)
        start = self.position % CAPACITY
        first = data[: CAPACITY - start]
        self.outgoing[DATA_START + start : DATA_START + start + len(first)] = first
        rest = data[len(first) :]
        self.outgoing[DATA_START : DATA_START + len(rest)] = rest
        self.position += len(data)
        self.set(self.outgoing, HEAD, self.position)

    def set(self, memory: mmap.mmap, place: int, value: int) -> None:
        """Change a number that both sides see, and ring the bell."""
        struct.pack_into("<Q", memory, place, value)
        with contextlib.suppress(OSError):  # the link has ended already
            self.socket.send(b"\1")

    def close(self) -> None:
        """Go without a word."""
        self.socket.close()
        self.incoming.close()
        self.outgoing.close()


def any_number(rng: random.Random) -> int:
    """One that is near to right, or far from it."""
    return rng.choice((1, 47, 48, CAPACITY, CAPACITY + 48, rng.getrandbits(64)))


def wrong_head(rng: random.Random, raw: RingPeer, collective: int) -> None:
    """Claims to have written what it has not, or less than before."""
    raw.write(good_frame(collective)[: rng.randrange(16, 4048, 16)])
    raw.set(raw.outgoing, HEAD, (raw.position + any_number(rng)) % (1 << 64))


def wrong_tails(rng: random.Random, raw: RingPeer, collective: int) -> None:
    """Changes how far the core has read, and claims to have read what it has not."""
    raw.set(raw.outgoing, TAIL, any_number(rng))
    raw.set(raw.incoming, TAIL, any_number(rng))
    raw.set(raw.incoming, HEAD, any_number(rng))
    raw.write(bytes(HEADER.size))


def filled(rng: random.Random, raw: RingPeer, collective: int) -> None:
    """The same right frame all over the ring, with no end in sight."""
    frame = pack(Header(FrameKind.READY, 0, collective, FINGERPRINT))
    whole = (frame * (CAPACITY // len(frame) + 1))[:CAPACITY]
    raw.outgoing[DATA_START:] = whole
    raw.set(raw.outgoing, HEAD, rng.choice((CAPACITY, 1 << 63, (1 << 64) - 1)))


def changed_while_read(rng: random.Random, raw: RingPeer, collective: int) -> None:
    """A header that is right, and then another, as the core may just look at it."""
    raw.write(good_frame(collective)[:2048] + bytes(2048))
    other = Header(FrameKind.DATA, 0, collective, FINGERPRINT, 0, 1 << 40, SLICE_BYTES)
    for _ in range(20):
        place = DATA_START + rng.randrange(0, 64, 16)
        raw.outgoing[place : place + HEADER.size] = pack(other)
    raw.outgoing[DATA_START:] = rng.randbytes(CAPACITY)


IN_RINGS = (wrong_head, wrong_tails, filled, changed_while_read)


def attack(seed: int, num_links: int) -> None:
    """Bad rings, each of a peer of its own; every link ends, the last peer's works."""
    rng = random.Random(seed)
    for _ in range(num_links // PEERS_AT_ONCE):
        raws = [RingPeer(number) for number in range(PEERS_AT_ONCE + 1)]
        core = NativeCore(99, [raw.link for raw in raws])
        out = torch.zeros(1000, dtype=torch.int32)
        for peer in range(PEERS_AT_ONCE + 1):
            schedule = schedule_of(receiving(peer, 4000), dtype=out.dtype)
            handle = submit(core, number_for(peer), schedule, out)
        for peer, raw in enumerate(raws[:-1]):
            if rng.random() < 0.5:
                rng.choice(IN_RINGS)(rng, raw, number_for(peer))
            else:
                raw.write(rng.choice(ATTACKS)(rng, number_for(peer)))
            raw.close()
        assert_all_end(core, f"seed {seed}")
        raws[-1].write(good_frame(number_for(PEERS_AT_ONCE)))
        assert_done(core, handle)
        raws[-1].close()
        core.close()


def test_fuzz_rings():
    attack(seed=1, num_links=PEERS_AT_ONCE)
    before = peak_bytes()
    attack(seed=2, num_links=600)
    assert peak_bytes() - before < 64 << 20


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(10, 20))
def test_fuzz_rings_at_length(seed):
    attack(seed=0, num_links=PEERS_AT_ONCE)
    before = peak_bytes()
    attack(seed=seed, num_links=2000)
    assert peak_bytes() - before < 64 << 20


@pytest.mark.parametrize("head", [CAPACITY + 16, 1 << 63, (1 << 64) - 16])
def test_fuzz_rings_a_head_beyond_the_ring_ends_the_link(head):
    raw = RingPeer(1)
    core = NativeCore(0, [raw.link])
    frame = pack(Header(FrameKind.READY, 0, 7, FINGERPRINT))
    raw.outgoing[DATA_START:] = (frame * (CAPACITY // len(frame) + 1))[:CAPACITY]
    raw.set(raw.outgoing, HEAD, head)
    assert b"beyond the end of its ring" in event_of(core, EventKind.LOST).data
    raw.close()
    core.close()
