"""Two emulated hosts meet over their link; a cut link is noticed, whatever was sent."""

import ctypes
import json
import os
import socket
import struct
import subprocess
import threading
import time
from typing import Any

import pytest

from placet.job.lab import Lab, lab, lab_missing
from placet.wire.engine.listening import end_silent, is_silent
from placet.wire.engine.meeting import Meeting, meet
from tests.wire.engine.meeting_ranks import MemoryStore, close, link

MISSING = lab_missing()
NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET, linux/sched.h
HEARTBEAT_SECONDS = 4.0


def enter(namespace: str) -> None:
    """Bring this thread onto another host."""
    with open(f"/run/netns/{namespace}") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), NETWORK_NAMESPACE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def meet_on(namespaces: tuple[str, ...], **arguments: Any) -> list[Meeting]:
    """A rank on each host meets the others."""
    store, met = MemoryStore(), {}

    def rank_on(rank: int) -> None:
        enter(namespaces[rank])  # of this thread alone, which ends soon
        met[rank] = meet(
            store,
            rank,
            len(namespaces),
            timeout_seconds=20,
            share_memory=True,
            memory_bytes=4096,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            **arguments,
        )

    threads = [
        threading.Thread(target=rank_on, args=(rank,))
        for rank in range(len(namespaces))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [met[rank] for rank in range(len(namespaces))]


@pytest.mark.lab
@pytest.mark.prove
@pytest.mark.skipif(MISSING is not None, reason=f"no lab here: {MISSING}")
def test_a_cut_link_is_noticed_whatever_was_under_way():
    with lab(Lab(hosts=2)) as built:
        network = built.network
        meetings = meet_on(network.hosts, interface="eth0", num_sockets=3)
        assert len(set(meetings[0].hosts)) == 2
        idle, sending, full = link(meetings[0], 1).sockets
        assert idle.getsockname()[0] != "127.0.0.1"
        while num_unanswered(idle):
            time.sleep(0.01)  # for what ended the handshake
        with pytest.raises(BlockingIOError):
            fill(full)
        cut = ("ip", "-n", network.switch, "link", "set", "h1", "down")
        subprocess.run(cut, check=True)
        sending.send(b"lost")
        since = time.monotonic()
        noticed: dict[str, float] = {}
        while len(noticed) < 3 and time.monotonic() < since + 4 * HEARTBEAT_SECONDS:
            now = time.monotonic() - since
            if idle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                noticed.setdefault("idle", now)
            for name, sock in {"sending": sending, "full": full}.items():
                if is_silent(sock, HEARTBEAT_SECONDS):
                    noticed.setdefault(name, now)
            time.sleep(0.02)
        print(json.dumps(noticed))
        assert noticed.keys() == {"idle", "sending", "full"}
        assert max(noticed.values()) < HEARTBEAT_SECONDS + 1.5
        assert min(noticed.values()) > HEARTBEAT_SECONDS - 1.5
        assert end_silent(meetings[0].links, HEARTBEAT_SECONDS) == (1,)
        assert sending.recv(1) == b""
        close(meetings)


def num_unanswered(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    number: int = struct.unpack_from("=24I", info, 8)[4]
    return number


def fill(sock: socket.socket) -> None:
    while True:
        sock.send(bytes(1 << 20))


@pytest.mark.lab
@pytest.mark.skipif(MISSING is not None, reason=f"no lab here: {MISSING}")
def test_the_interface_is_found_by_the_way_to_the_first_host():
    with lab(Lab(hosts=2)) as built:
        addresses = tuple(built.network.address(host) for host in range(2))
        meetings = meet_on(built.network.hosts, towards=addresses[0])
        for rank in range(2):
            (one,) = meetings[rank].links
            assert one.sockets[0].getsockname()[0] == addresses[rank]
            assert one.send_memory == -1
        close(meetings)
