"""A peer whose messages make no sense is given up; the wire goes on."""

import random

import pytest
import torch

from placet.boxing.moves import AllReduce
from placet.errors import PeerLost
from placet.wire.engine.core import Link
from placet.wire.engine.frames import MESSAGE_BYTES, FrameKind, Header
from placet.wire.engine.messages import OWN_TOPICS, pack_message
from placet.wire.engine.plain.core import PlainCore
from placet.wire.engine.wire import start_wire
from tests.wire.engine.core_rig import RawPeer, socket_pairs

DEEP = b"[" * (MESSAGE_BYTES // 2)

BODIES = (
    b"",
    b"\xff\xfe",
    b"[]",
    b"7",
    b"{}",
    b"[1e999, [0]]",
    b"[0, [1e999]]",
    b"[0, 3]",
    b'{"epoch": 1e999, "collective": 0, "key": "", "group": [], "control": 0,'
    b' "text": "", "kind": ""}',
    b'{"epoch": 0, "collective": 0, "key": "", "group": 5, "control": 0, "text": ""}',
    b"1e999\n{}",
    b"0\n" + DEEP,
    DEEP,
)

HEADS = (b"", b"\n", b"[]\n", b"7\n", b'{"topic": 7}\n', b"\xff\n", DEEP + b"\n")

MESSAGES = [*HEADS, *(pack_message(t, b) for t in sorted(OWN_TOPICS) for b in BODIES)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: repr(m[:50]))
def test_nonsense_in_a_message_is_its_senders_fault(message):
    raw, wire = beside_wire()
    try:
        raw.send(Header(FrameKind.CONTROL, 0, num_bytes=len(message)), message)
        assert_only_the_peer_is_given_up(raw, wire)
    finally:
        wire.close()


def test_random_messages():
    rng = random.Random(1)
    for _ in range(20):
        raw, wire = beside_wire()
        body = bytearray(rng.choice(BODIES[2:-2]))
        for _ in range(rng.randint(0, 3)):
            body.insert(rng.randrange(len(body) + 1), rng.randrange(256))
        message = pack_message(rng.choice(sorted(OWN_TOPICS)), bytes(body))
        raw.send(Header(FrameKind.CONTROL, 0, num_bytes=len(message)), message)
        assert_only_the_peer_is_given_up(raw, wire)
        wire.close()


def beside_wire():
    """Rank 0, a wire; rank 1 is played by the test."""
    ours, theirs = socket_pairs(1)
    core = PlainCore(0, [Link(1, ours)])
    wire = start_wire(core, rank=0, num_ranks=2, hosts=["a", "b"], timeout_seconds=20)
    return RawPeer(theirs), wire


def assert_only_the_peer_is_given_up(raw, wire) -> None:
    """Moves with rank 1 fail as if it were gone, which in the end it is."""
    raw.close()
    with pytest.raises(PeerLost, match="rank 1"):
        wire.submit(AllReduce((0, 1), 1, torch.float32), torch.ones(1), key="x").wait()
    alone = AllReduce((0,), 1, torch.float32)
    assert wire.submit(alone, torch.ones(1), key="y").wait().tolist() == [1.0]
