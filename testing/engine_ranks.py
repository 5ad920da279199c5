"""Ranks of the engine as threads of one process, joined by socket pairs.

    results = run_engine(3, lambda wire: wire.exchange(b"x", key="k"))

Each rank has a core of its own, so all that happens between processes happens here, but
for death: `cut` ends a rank's links as a kill would.
"""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

from placet.wire.engine.core import Core, Link
from placet.wire.engine.plain.core import PlainCore
from placet.wire.engine.wire import EngineWire, start_wire

T = TypeVar("T")


def links(num_ranks: int) -> list[list[Link]]:
    """Links between all pairs of ranks, by rank."""
    found: list[list[Link]] = [[] for _ in range(num_ranks)]
    for a in range(num_ranks):
        for b in range(a):
            left, right = socket.socketpair()
            found[a].append(Link(b, (left,)))
            found[b].append(Link(a, (right,)))
    return found


def wires(
    num_ranks: int,
    *,
    joined: Sequence[Sequence[Link]] | None = None,
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
        for rank, mine in enumerate(joined or links(num_ranks))
    ]


def cut(all_links: Sequence[Link]) -> None:
    """End a rank's links as its death would, without a word."""
    for link in all_links:
        for connection in link.sockets:
            with suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)


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
