"""Keeps a wire's connections out of forked children.

A child that is forked (a data loader's worker) inherits every open socket. While it
lives, the kernel does not end the connections of a parent that was killed, so the other
ranks would wait for the dead one until their deadline. Hence each child puts the null
device in their place at once. It must not close them: another owner of the number may
do that later, and would then close some other file.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from socket import socket

_OPEN_FILES = Path("/proc/self/fd")

_connections: dict[tuple[int, int], int] = {}
"""Device and inode of each connection, which copies of it share; its number."""


def keep_from_children(connections: Iterable[socket]) -> None:
    """Drop connections, and all copies of them, in children forked from now on.

    Args:
        connections: open sockets; they may be closed, copied or detached later.
    """
    for identity, number in _connections.copy().items():  # other threads add to it
        if _identity(number) != identity:
            _connections.pop(identity, None)  # closed in the meantime
    for connection in connections:
        found = _identity(connection.fileno())
        if found is not None:
            _connections[found] = connection.fileno()


def _identity(number: int) -> tuple[int, int] | None:
    """What a descriptor and its copies have in common; None if it is no socket."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def _drop() -> None:
    if not _connections:
        return
    numbers = set(_connections.values())
    with suppress(OSError):  # elsewhere than on Linux, copies stay
        numbers |= {int(name) for name in os.listdir(_OPEN_FILES)}
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        if _identity(number) in _connections:
            os.dup2(null, number, inheritable=False)
    os.close(null)
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop)
