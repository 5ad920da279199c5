"""Ranks of the engine as threads of one process, joined by socket pairs.

    results = run_engine(3, lambda wire: wire.exchange(b"x", key="k"))

Each rank has a core of its own, so all that happens between processes happens here, but
for death: `Joined.cut` ends a rank's links as a kill would.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar

from placet.wire.engine.core import Core, Link
from placet.wire.engine.plain.core import PlainCore
from placet.wire.engine.wire import EngineWire, start_wire

T = TypeVar("T")


@dataclass(frozen=True)
class Joined:
    """Links between all pairs of ranks.

    Args:
        links: by rank.
        files: (rank, peer, descriptor, inode) of each socket.
    """

    links: list[list[Link]]
    files: list[tuple[int, int, int, int]]

    def cut(self, rank: int, peer: int | None = None) -> None:
        """End a rank's links (or that to one peer) as its death would: no word said."""
        for own, other, number, inode in self.files:
            if own != rank or peer not in (None, other):
                continue
            with suppress(OSError):
                # The core may have closed it; the number may be another file's by now.
                if os.fstat(number).st_ino == inode:
                    with socket.socket(fileno=os.dup(number)) as connection:
                        connection.shutdown(socket.SHUT_RDWR)


def join(num_ranks: int) -> Joined:
    """Socket pairs between all ranks."""
    joined = Joined([[] for _ in range(num_ranks)], [])
    for a in range(num_ranks):
        for b in range(a):
            for rank, peer, connection in zip(
                (a, b), (b, a), socket.socketpair(), strict=True
            ):
                joined.links[rank].append(Link(peer, (connection,)))
                number = connection.fileno()
                joined.files.append((rank, peer, number, os.fstat(number).st_ino))
    return joined


def wires(
    num_ranks: int,
    *,
    joined: Joined | None = None,
    make_core: Callable[[int, Sequence[Link]], Core] = PlainCore,
    timeout_seconds: float = 10.0,
    **settings: Any,
) -> list[EngineWire]:
    """A wire for each rank, linked.

    Args:
        num_ranks: how many.
        joined: the links between them, to cut some later; made here if left out.
        make_core: what carries the bytes.
        timeout_seconds, settings: for `start_wire`.
    """
    return [
        start_wire(
            make_core(rank, mine),
            rank=rank,
            num_ranks=num_ranks,
            hosts=[f"host{rank}" for rank in range(num_ranks)],
            timeout_seconds=timeout_seconds,
            **settings,
        )
        for rank, mine in enumerate((joined or join(num_ranks)).links)
    ]


def run_engine(
    num_ranks: int,
    fn: Callable[..., T],
    *args: Any,
    timeout: float = 30.0,
    **settings: Any,
) -> list[T | BaseException]:
    """Run `fn(wire, *args)` as every rank; what each returned or raised.

    Args:
        num_ranks: how many ranks.
        fn: gets its rank's wire first.
        args: the same for all ranks.
        timeout: seconds until ranks that still run are given up.
        settings: for `wires`.
    """
    started = wires(num_ranks, **settings)
    results = on_each(started, fn, *args, timeout=timeout)
    on_each(started, EngineWire.close, timeout=timeout)
    return results


def on_each(
    started: Sequence[EngineWire],
    fn: Callable[..., T],
    *args: Any,
    timeout: float = 30.0,
) -> list[T | BaseException]:
    """Run `fn(wire, *args)` on each wire, in threads; what each returned or raised."""
    results: dict[int, T | BaseException] = {}

    def run(place: int, wire: EngineWire) -> None:
        try:
            results[place] = fn(wire, *args)
        except BaseException as error:
            results[place] = error

    threads = [
        Thread(target=run, args=(place, wire), daemon=True)
        for place, wire in enumerate(started)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hung = [str(i) for i, thread in enumerate(threads) if thread.is_alive()]
    assert not hung, f"ranks {', '.join(hung)} still run after {timeout:g} s"
    return [results[place] for place in range(len(started))]
