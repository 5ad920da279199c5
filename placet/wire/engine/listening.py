"""Sockets and shared memory for ranks that meet: made so that nothing is left behind.

On Linux neither a socket between processes of one host nor the memory they share has a
name in any folder, so a rank that is killed leaves no litter.
"""

import fcntl
import os
import secrets
import socket
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from placet.wire.engine.core import Link

BACKLOG = 1024
"""Connections that wait to be accepted; the kernel may lower it."""

LINUX = sys.platform == "linux"
TCP_INFO_BYTES = 104
"""As much of Linux's `tcp_info` as we read (linux/tcp.h): 8 bytes, then 24 uint32."""


@dataclass(frozen=True)
class Address:
    """Where a rank listens.

    Args:
        place: a Unix socket's name, or an IP address.
        port: the TCP port; 0 for a Unix socket.
    """

    place: str
    port: int = 0


@contextmanager
def listen_near(*, abstract: bool = LINUX) -> Iterator[tuple[socket.socket, Address]]:
    """A listener for ranks of this host, closed at the end.

    Args:
        abstract: use a name that lives in no folder (Linux). Otherwise it is a file in
            a folder that only this user may enter, removed at the end.
    """
    name = f"\0placet-{secrets.token_hex(16)}"
    folder = None
    if not abstract:
        folder = Path(tempfile.mkdtemp(prefix="placet-"))  # with mode 0700
        name = str(folder / "meet")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(name)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            yield listener, Address(name)
    finally:
        if folder is not None:
            (folder / "meet").unlink(missing_ok=True)
            folder.rmdir()


@contextmanager
def listen_far(address: str) -> Iterator[tuple[socket.socket, Address]]:
    """A TCP listener at one address of this host, closed at the end."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener, Address(address, listener.getsockname()[1])


def dial(address: Address) -> socket.socket:
    """A socket that is being connected; writable once it is, or has failed.

    Raises:
        OSError: it failed at once.
    """
    family = socket.AF_INET6 if ":" in address.place else socket.AF_INET
    near = address.port == 0
    sock = socket.socket(socket.AF_UNIX if near else family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        try:
            sock.connect(address.place if near else (address.place, address.port))
        except BlockingIOError:
            if near:  # the listener's queue is full
                raise
    except OSError:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket, heartbeat_seconds: float) -> None:
    """Set up a connected TCP socket: small frames at once, and a lost host noticed.

    An idle connection is probed by the kernel, so its end comes within
    `heartbeat_seconds` (rounded to seconds, at least 3). The other side's kernel
    answers even while its process is stopped.
    """
    # NOTE [No TCP_USER_TIMEOUT]: it would bound how long data may stay unanswered, but
    # Linux also ends a connection by it whose peer answers "no room yet" all the while,
    # as the host of a stopped process does. `end_silent` tells the two apart.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    num_probes = 3
    between = max(1, int(heartbeat_seconds / 5))
    idle = max(1, int(heartbeat_seconds) - between * num_probes)
    options = {"KEEPIDLE": idle, "KEEPINTVL": between, "KEEPCNT": num_probes}
    for name, value in options.items():
        if hasattr(socket, f"TCP_{name}"):
            number = getattr(socket, f"TCP_{name}")
            sock.setsockopt(socket.IPPROTO_TCP, number, value)


def is_silent(sock: socket.socket, heartbeat_seconds: float) -> bool:
    """Whether the peer's host owes an answer, and has given none for so long.

    The kernel's own probes stop while data are under way, and it would send those again
    for a quarter of an hour. False for Unix sockets, and where Linux's counts are not
    to be had.
    """
    if sock.family == socket.AF_UNIX or not LINUX:
        return False
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < TCP_INFO_BYTES:
        return False
    # How often, in a row, were data sent again, or the peer asked if it has room now?
    num_again, num_asked = info[2], info[3]
    quiet_ms = struct.unpack_from("=24I", info, 8)[12]  # since anything was answered
    # A host that is well leaves one or two unanswered: one is lost, or it answers less
    # often than it is asked. Three take the kernel more than a second.
    owes = max(num_again, num_asked) > 2
    return owes and quiet_ms >= heartbeat_seconds * 1000


def end_silent(links: Iterable[Link], heartbeat_seconds: float) -> tuple[int, ...]:
    """Shut the sockets of links whose host is silent; the core then sees them lost.

    To be called a few times in each `heartbeat_seconds`, while the sockets are open.

    Returns:
        The peers.
    """
    silent = [
        link
        for link in links
        if any(is_silent(sock, heartbeat_seconds) for sock in link.sockets)
    ]
    for sock in (sock for link in silent for sock in link.sockets):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # it ended in the meantime, which is what we want
    return tuple(link.peer for link in silent)


def can_share_memory() -> bool:
    """Whether memory can be shared without a name in any folder."""
    return hasattr(os, "memfd_create") and hasattr(socket, "send_fds")


def make_memory(num_bytes: int) -> int:
    """A descriptor of zeroed memory of that size, which nobody can shrink or grow."""
    sealing = getattr(os, "MFD_ALLOW_SEALING", 0)
    memory = os.memfd_create("placet", os.MFD_CLOEXEC | sealing)
    try:
        os.ftruncate(memory, num_bytes)
        if sealing and hasattr(fcntl, "F_ADD_SEALS"):
            # A peer that shrank it would kill us at the next access (SIGBUS).
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(memory)
        raise
    return memory
