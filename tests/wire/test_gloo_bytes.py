"""What futures tell of bytes is what the sockets carried, to the byte.

The kernel counts the bytes of each TCP socket (TCP_INFO). Beyond the predicted bytes of
a move there may only be gloo's headers, of one size.
"""

import os
import socket
import struct

import pytest
import torch

from placet.boxing.moves import AllReduce, AllToAll, describe
from placet.torch_private.c10d import TCPStore, default_store
from testing.ranks import run_ranks
from tests.wire.conformance import moves_of, payload_of

pytestmark = pytest.mark.procs

HEADER_BYTES = 48


def socket_bytes(but_port):
    """Bytes that all TCP sockets of this process sent and received so far."""
    sent = received = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            is_socket = os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except FileNotFoundError:
            continue
        if not is_socket:
            continue
        try:
            copy = os.dup(int(descriptor))
        except OSError:  # closed since
            continue
        with socket.socket(fileno=copy) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                peer = found.getpeername()
            except OSError:
                continue
            if peer[1] == but_port:
                continue
            # struct tcp_info (linux/tcp.h): bytes received at 128, sent at 200, and
            # of these sent again at 208, as an idle peer may cause
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 240)
            received += struct.unpack_from("Q", info, 128)[0]
            sent += struct.unpack_from("Q", info, 200)[0]
            sent -= struct.unpack_from("Q", info, 208)[0]
    return sent, received


def store_port():
    store = default_store()
    while not isinstance(store, TCPStore):
        store = store.underlying_store
    return store.port


def count_bytes(wire, moves):
    """Bytes sent and received beyond what each move's future told, on this rank."""
    port = store_port()
    extra = []
    for i, move in enumerate(moves):
        wire.prepare([move.group])
        payload = payload_of(move, wire.rank, "cpu")
        wire.exchange(b"", key="quiet")
        before = socket_bytes(port)
        wire.exchange(b"", key="start")
        future = wire.submit(move, payload, key=f"{i}")
        future.wait()
        wire.exchange(b"", key="stop")
        after = socket_bytes(port)
        told = (future.traffic().sent_bytes, future.traffic().received_bytes)
        extra.append([after[way] - before[way] - told[way] for way in (0, 1)])
    return extra


def assert_headers_only(counts, num_ranks, what):
    """One of the counts is a whole number of headers, and not more than needed.

    The kernel's own counters stray by a few bytes where a full window is probed, so a
    large move is tried more than once.
    """
    # A segment of a ring costs at most three headers: the data and two notices.
    most = 3 * 2 * 8 * num_ranks * HEADER_BYTES
    exact = [n for n in counts if n % HEADER_BYTES == 0 and 0 <= n <= most]
    assert exact, f"{what}: {counts} bytes beyond those predicted"


@pytest.mark.parametrize("num_ranks", [2, 3, pytest.param(4, marks=pytest.mark.prove)])
def test_gloo_sockets_carry_what_was_predicted_and_headers(num_ranks):
    group = tuple(range(num_ranks))[::-1]
    small = list(moves_of(group, torch.float32))
    small += [AllReduce(group, n, torch.float16) for n in (11, 4321)]
    large = [AllReduce(group, 4_000_001, torch.float16)] * 4
    for rank, extra in enumerate(run_ranks(num_ranks, count_bytes, small + large)):
        for way, name in enumerate(("sent", "received")):
            counts = [both[way] for both in extra]
            for move, count in zip(small, counts, strict=False):
                what = f"rank {rank} {name}, {describe(move)}"
                assert_headers_only([count], num_ranks, what)
            what = f"rank {rank} {name}, {describe(large[0])}"
            assert_headers_only(counts[len(small) :], num_ranks, what)


def test_gloo_pairs_leave_the_others_alone():
    table = ((0, 5, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    move = AllToAll((0, 1, 2, 3), table, torch.int16)
    # More than once: what the start of the ranks sent may still be arriving at first.
    found = run_ranks(4, count_bytes, [move] * 4)
    assert found[2][-1] == found[3][-1] == [0, 0]
    assert all(n >= HEADER_BYTES for n in (found[0][-1][0], found[1][-1][1]))
