"""A silent host is told from a stopped process, and idle sockets are probed."""

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from placet.wire.engine import listening
from placet.wire.engine.core import Link
from placet.wire.engine.listening import end_silent, is_silent, tune


@pytest.fixture
def joined() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        src = socket.create_connection(listener.getsockname())
        dst, _ = listener.accept()
    with src, dst:
        src.setblocking(False)
        yield src, dst


@pytest.mark.parametrize("heartbeat_seconds", [3, 4, 10, 10.9, 60])
def test_an_idle_socket_is_probed_in_time(joined, heartbeat_seconds: float):
    sock, _ = joined
    tune(sock, heartbeat_seconds)
    idle, between, num_probes = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    latest = idle + between * num_probes
    assert heartbeat_seconds - 1 < latest <= max(4, heartbeat_seconds)
    # It would end the connection to a stopped process.
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_who_reads_nothing_for_long_is_not_silent(joined):
    src, _ = joined
    tune(src, 3)
    until, num_full = time.monotonic() + 1.2, 0
    while time.monotonic() < until:
        try:
            src.send(bytes(1 << 20))
        except BlockingIOError:
            num_full += 1
            time.sleep(0.05)  # the kernel asks "is there room?" in the meantime
        assert not is_silent(src, 0.2)
    assert num_full > 5
    assert src.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


class Told:
    """A socket whose kernel tells what a test says."""

    family = socket.AF_INET

    def __init__(self, num_again: int, num_asked: int, quiet_ms: int) -> None:
        numbers = [0] * 24
        numbers[12] = quiet_ms
        first = (1, 0, num_again, num_asked, 0, 0, 0, 0)
        self.info = struct.pack("=8B24I", *first, *numbers)
        self.is_shut = False

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return self.info[:size]

    def shutdown(self, how: int) -> None:
        self.is_shut = True


@pytest.mark.parametrize(
    ("num_again", "num_asked", "quiet_ms", "expected"),
    [
        (0, 0, 60_000, False),  # idle: the kernel's own probes care for it
        (2, 0, 60_000, False),  # a frame after a long rest, lost once or twice
        (5, 0, 9_999, False),
        (5, 0, 10_000, True),  # what was sent is not answered
        (0, 2, 60_000, False),  # a stopped process: its host answers
        (0, 5, 10_000, True),
    ],
)
def test_silence(num_again: int, num_asked: int, quiet_ms: int, expected: bool):
    told = Told(num_again, num_asked, quiet_ms)
    assert is_silent(told, 10) == expected  # type: ignore[arg-type]


def test_the_sockets_of_silent_links_are_shut():
    well, silent = Told(0, 0, 0), Told(6, 0, 20_000)
    links = [Link(1, (well, well)), Link(4, (well, silent))]  # type: ignore[arg-type]
    assert end_silent(links[:1], 10) == ()
    assert not well.is_shut
    assert end_silent(links, 10) == (4,)
    assert silent.is_shut


def test_unix_sockets_are_never_silent():
    src, dst = socket.socketpair()
    with src, dst:
        assert not is_silent(src, 0.0)


def test_without_linux_nothing_is_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listening, "LINUX", False)
    assert not is_silent(Told(9, 9, 99_999), 1)  # type: ignore[arg-type]
