"""From a store to a running engine: meet the other ranks, start a core and a wire."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias

from placet.placement.cluster import Cluster, Host, LinkClass
from placet.wire.engine.core import Core, Link
from placet.wire.engine.listening import end_silent
from placet.wire.engine.meeting import MeetingStore, meet
from placet.wire.engine.native.build import CannotBuild
from placet.wire.engine.native.core import NativeCore, check_usable
from placet.wire.engine.plain.core import PlainCore
from placet.wire.engine.wire import EngineWire, start_wire

CoreName: TypeAlias = Literal["native", "plain"]

MEMORY_BYTES = (1 << 12) + (1 << 20)
"""Memory that two ranks of a host share for each direction: a page and a ring."""

SPIN_SECONDS = 5e-5
"""How long a waiting rank looks for news before it sleeps, where each has a core."""

MEETING_BYTES = 1 << 14
"""What meeting through the store takes, at most; rank 0 keeps it for each other."""

_NO_MATTER = 1
"""Memory of a guessed host: no algorithm depends on it."""


def connect_engine(
    store: MeetingStore,
    rank: int,
    num_ranks: int,
    *,
    timeout_seconds: float = 300.0,
    cluster: Cluster | None = None,
    core: CoreName | None = None,
    debug: bool = False,
    report_folder: Path | None = None,
    can_reform: bool = True,
    num_sockets: int | None = None,
    towards: str | None = None,
    heartbeat_seconds: float = 10.0,
) -> EngineWire:
    """Join the other ranks by the engine; each rank calls it once.

    Args:
        store: where the ranks meet; empty, and this meeting's alone.
        rank: this rank.
        num_ranks: how many there are.
        timeout_seconds: deadline of the meeting and of every move.
        cluster: the links between ranks, by which algorithms are chosen; equal on all.
            Guessed from where the ranks are if left out.
        core: "native" (C++) or "plain" (Python); native where it can be compiled.
        debug: see `EngineWire`.
        report_folder: where flight records go when something fails.
        can_reform: whether the program can call `reform`; errors then name it.
        num_sockets: TCP sockets between two hosts' ranks; what the cluster says, or 1,
            if left out.
        towards: see `meet`.
        heartbeat_seconds: a host that is silent for so long is lost.

    Raises:
        ValueError: the cluster is for another number of ranks.
        WireTimeout: not all ranks came; names them.
        RanksDiffer: they came with different versions or settings.
        CannotBuild: the native core was asked for and cannot be compiled.
    """
    if cluster is not None and cluster.num_ranks != num_ranks:
        raise ValueError(
            f"a cluster of {cluster.num_ranks} ranks for a job of {num_ranks}: measure "
            f"again with placet calibrate --links -n {num_ranks}"
        )
    name = core or _best_core()
    meeting = meet(
        store,
        rank,
        num_ranks,
        timeout_seconds=timeout_seconds,
        share_memory=name == "native",
        memory_bytes=MEMORY_BYTES,
        num_sockets=num_sockets or partial(_num_sockets, cluster, rank),
        towards=towards,
        heartbeat_seconds=heartbeat_seconds,
    )
    num_here = meeting.hosts.count(meeting.hosts[rank])
    # The core owns the sockets; these are the same connections, to watch.
    far = [
        replace(link, sockets=tuple(sock.dup() for sock in link.sockets))
        for link in meeting.links
        if meeting.hosts[link.peer] != meeting.hosts[rank]
    ]
    return start_wire(
        make_core(name, rank, meeting.links, num_here),
        rank=rank,
        num_ranks=num_ranks,
        hosts=meeting.hosts,
        timeout_seconds=timeout_seconds,
        cluster=cluster or guess_cluster(meeting.hosts),
        debug=debug,
        report_folder=report_folder,
        can_reform=can_reform,
        watch=partial(end_silent, far, heartbeat_seconds),
        start_bytes=MEETING_BYTES * (num_ranks - 1 if rank == 0 else 1),
    )


def _num_sockets(cluster: Cluster | None, rank: int, peer: int) -> int:
    return 1 if cluster is None else cluster.link(rank, peer).num_sockets


def guess_cluster(hosts: Sequence[str]) -> Cluster | None:
    """Links as they often are: what to choose algorithms by before any were measured.

    None where the ranks of a host do not follow one another, as a cluster numbers them.

    Args:
        hosts: the name of each rank's host.
    """
    runs = [(name, len(list(ranks))) for name, ranks in groupby(hosts)]
    if len(runs) != len(set(hosts)):
        return None
    links = (LinkClass("memory", 2e-5, 3e9), LinkClass("network", 1e-4, 1.2e8))
    found = tuple(Host(name, num, _NO_MATTER, "memory") for name, num in runs)
    return Cluster(found, links, "network")


def make_core(name: CoreName, peer: int, links: Sequence[Link], num_here: int) -> Core:
    """A core over links, which it owns from then on.

    Args:
        name: which one.
        peer: this process's number.
        links: to all others.
        num_here: ranks on this host; they sleep early where cores are too few.
    """
    spin_seconds = SPIN_SECONDS if num_here <= len(os.sched_getaffinity(0)) else 0.0
    if name == "native":
        return NativeCore(peer, links, spin_seconds=spin_seconds)
    return PlainCore(peer, links, spin_seconds=spin_seconds)


def _best_core() -> CoreName:
    try:
        check_usable()
    except CannotBuild as error:
        warnings.warn(
            f"the wire's native core cannot be used, so the slower one in Python "
            f"carries the moves: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return "plain"
    return "native"
