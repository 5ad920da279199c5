"""`placet calibrate --links`: what the links between the ranks carry.

Pairs of ranks send each other messages of growing size, both ways, while all other
pairs of their round do the same: a link is measured as loaded as in training. Hosts are
told apart by the wire's own rule; groups of hosts by a gap in what they carry.

    calibrate            the command
    measure_links        on each rank: times every pair      -> Calibration
    Calibration.cluster  what the planner and the wire read
"""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from placet.boxing.moves import AllReduce, AllToAll
from placet.job import session
from placet.job.launch import launch
from placet.job.link_fit import (
    LARGE_BYTES,
    LinkFit,
    Pair,
    Timed,
    fit,
    host_groups,
    pooled,
    rounds,
)
from placet.job.process import cores, die_with_parent
from placet.placement.cluster import Cluster, Host
from placet.settings import worker
from placet.wire.engine.hosts import host_name
from placet.wire.interface import Wire

SIZES = (1 << 10, 1 << 16, LARGE_BYTES, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of the messages; the last are left out where they would take too long."""

LONGEST_SECONDS = 1.0
"""No size is begun whose messages would take longer."""

SIZE_SECONDS = 0.15
FEWEST, MOST = 5, 15
"""Each size is repeated for so long, within these numbers."""

SMALL_CALLS = 10
"""Small messages go so many times in a row: a barrier's end is not that sharp."""

WITHIN, HOSTS, GROUPS = "memory", "network", "uplink"
"""The names of the link classes: ranks of a host, hosts of a group, groups."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs.

    Args:
        key: equal for ranks of one host.
        name: the host's name.
        memory_bytes: of the host.
    """

    key: str
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Measurement:
    """A link class as it was measured.

    Args:
        name: of the class.
        line: through the times of all its pairs.
        num_pairs: how many pairs of ranks were timed.
        slowest: bytes/s of the slowest pair.
    """

    name: str
    line: LinkFit
    num_pairs: int
    slowest: float


@dataclass(frozen=True)
class Calibration:
    """What was measured, and the cluster that it describes."""

    measurements: tuple[Measurement, ...]
    cluster: Cluster


def calibrate(num_ranks: int | None, cluster_out: Path | None) -> int:
    """Measure, print and write; the exit code for the shell.

    Args:
        num_ranks: local ranks; None: one a core and at least 2, or those of torchrun.
        cluster_out: the TOML file to write, or None.

    Raises:
        ValueError: fewer than 2 ranks, or not as many as torchrun has started.
        RankFailed: a local rank failed.
    """
    place = worker()
    if place is not None and num_ranks not in (None, place.num_ranks):
        raise ValueError(
            f"-n {num_ranks} under torchrun, which has started {place.num_ranks} "
            "workers; leave -n out"
        )
    wanted = num_ranks or max(2, cores()) if place is None else place.num_ranks
    if wanted < 2:
        raise ValueError(f"-n {wanted}: a link joins two ranks; use -n 2 or more")
    if place is None:
        found: Calibration = launch(measure_here, wanted)[0]
    else:
        die_with_parent()
        found = measure_here()
    if place is None or place.rank == 0:
        print_measurements(found, Console(highlight=False))
        if cluster_out is not None:
            found.cluster.save(cluster_out)
            print(f"cluster: {cluster_out}", flush=True)
    return 0


def measure_here() -> Calibration:
    """Measure as one of the ranks of this job."""
    found = measure_links(session.current_wire())
    session.close()
    return found


def measure_links(wire: Wire) -> Calibration:
    """Time every pair of every round; all ranks of the wire call it and get the same.

    Raises:
        ValueError: ranks of one host do not follow one another, or the machine is too
            busy to see a difference between sizes.
    """
    places = _places(wire)
    hosts = ranks_by_host([place.key for place in places])
    times: dict[Pair, tuple[Timed, ...]] = {}
    for number, pairs in enumerate(rounds(hosts)):
        mine = _time_round(wire, pairs, number)
        given = json.dumps([[t.num_bytes, *t.seconds] for t in mine]).encode()
        found = wire.exchange(given, key=f"calibrate.{number}")
        of_rank = [
            [Timed(int(size), tuple(seconds)) for size, *seconds in json.loads(x)]
            for x in found
        ]
        times |= {(a, b): slower(of_rank[a], of_rank[b]) for a, b in pairs}
    return calibration(times, hosts, places)


def calibration(
    times: Mapping[Pair, Sequence[Timed]],
    hosts: Sequence[Sequence[int]],
    places: Sequence[Place],
) -> Calibration:
    """Link classes and the cluster from the times of all pairs.

    Args:
        times: of each pair of ranks that was timed.
        hosts: the ranks of each host.
        places: where each rank runs.
    """
    host_of = {rank: h for h, ranks in enumerate(hosts) for rank in ranks}
    between: dict[Pair, list[Sequence[Timed]]] = {}
    for (a, b), timed in times.items():
        between.setdefault((host_of[a], host_of[b]), []).append(timed)
    rates = {
        pair: fit(pooled(timed)).link_bytes_per_s
        for pair, timed in between.items()
        if pair[0] != pair[1]
    }
    groups = host_groups(rates, len(hosts))
    classes: dict[str, list[Sequence[Timed]]] = {}
    for (a, b), found in between.items():
        name = GROUPS if groups[a] != groups[b] else WITHIN if a == b else HOSTS
        classes.setdefault(name, []).extend(found)
    measurements = tuple(
        _measurement(name, classes[name])
        for name in (WITHIN, HOSTS, GROUPS)
        if name in classes
    )
    names = _unique([places[ranks[0]].name for ranks in hosts])
    several = len(set(groups)) > 1
    cluster = Cluster(
        hosts=tuple(
            Host(
                name=name,
                num_ranks=len(ranks),
                memory_bytes=places[ranks[0]].memory_bytes,
                # A host with one rank has no link inside; any that is known will do.
                link=WITHIN if WITHIN in classes else measurements[0].name,
                group=f"group{group}" if several else "",
            )
            for name, ranks, group in zip(names, hosts, groups, strict=True)
        ),
        links=tuple(m.line.link(m.name) for m in measurements),
        between_hosts=HOSTS if HOSTS in classes else "",
        between_groups=GROUPS if GROUPS in classes else "",
    )
    return Calibration(measurements, cluster)


def ranks_by_host(keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host, hosts in the order of their first rank.

    Raises:
        ValueError: a cluster file numbers ranks host by host, and these are not.
    """
    found: dict[str, list[int]] = {}
    for rank, key in enumerate(keys):
        found.setdefault(key, []).append(rank)
    hosts = tuple(map(tuple, found.values()))
    if [rank for ranks in hosts for rank in ranks] != list(range(len(keys))):
        raise ValueError(
            f"ranks by host are {hosts}; a cluster file numbers them host by host: "
            "start the ranks of each host together, as torchrun does"
        )
    return hosts


def slower(ours: Sequence[Timed], theirs: Sequence[Timed]) -> tuple[Timed, ...]:
    """A pair's times: each message ends when both have what they were sent."""
    return tuple(
        Timed(a.num_bytes, tuple(map(max, a.seconds, b.seconds)))
        for a, b in zip(ours, theirs, strict=True)
    )


def print_measurements(found: Calibration, console: Console) -> None:
    """The link classes as a table."""
    table = Table(title="Links, with all ranks running at once", title_justify="left")
    table.add_column("between", no_wrap=True)
    for column in ("pairs", "latency", "rate", "spread", "misfit", "slowest pair"):
        table.add_column(column, justify="right")
    for measured in found.measurements:
        line = measured.line
        table.add_row(
            _MEANING[measured.name],
            str(measured.num_pairs),
            f"{line.latency_s * 1e6:.0f} us",
            _rate(line.link_bytes_per_s),
            f"{line.spread:.0%}",
            f"{line.misfit:.0%}",
            _rate(measured.slowest),
        )
    console.print(table)
    console.print(
        "spread: width of the middle half of the largest messages' times; misfit: how "
        "far a median is from latency + bytes / rate"
    )


_MEANING = {
    WITHIN: "ranks of a host",
    HOSTS: "hosts",
    GROUPS: "groups of hosts",
}


def _measurement(name: str, pairs: Sequence[Sequence[Timed]]) -> Measurement:
    return Measurement(
        name=name,
        line=fit(pooled(pairs)),
        num_pairs=len(pairs),
        slowest=min(fit(timed).link_bytes_per_s for timed in pairs),
    )


def _places(wire: Wire) -> list[Place]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    mine = [host_name(), platform.node() or "host", memory_bytes]
    found = wire.exchange(json.dumps(mine).encode(), key="calibrate.places")
    return [Place(*json.loads(place)) for place in found]


def _time_round(wire: Wire, pairs: Sequence[Pair], number: int) -> list[Timed]:
    """This rank's times of a round; all ranks take part, also without a partner."""
    found = []
    for size in SIZES:
        move = _swap(pairs, size, wire.num_ranks)
        num_calls = SMALL_CALLS if size < LARGE_BYTES else 1
        timed = _timer(wire, move, f"calibrate.{number}.{size}", num_calls)
        expected = _slowest(wire, timed())
        repeats = int(SIZE_SECONDS / (expected * num_calls))
        repeats = max(FEWEST, min(MOST, repeats))
        found.append(Timed(size, tuple(timed() for _ in range(repeats))))
        if size > LARGE_BYTES and 4 * expected > LONGEST_SECONDS:
            break  # the next size has four times the bytes
    return found


def _timer(wire: Wire, move: AllToAll, key: str, num_calls: int) -> Callable[[], float]:
    """Gives a function that runs the move and returns this rank's seconds a call."""
    given = torch.zeros(sum(move.sends(wire.rank)), dtype=move.dtype)
    out = torch.zeros(sum(move.receives(wire.rank)), dtype=move.dtype)

    def timed() -> float:
        _slowest(wire, 0.0)  # all begin together
        began = time.perf_counter()
        for _ in range(num_calls):
            wire.submit(move, given, key=key, out=out).wait()
        return (time.perf_counter() - began) / num_calls

    return timed


def _swap(pairs: Sequence[Pair], num_bytes: int, num_ranks: int) -> AllToAll:
    """Each pair sends so much to each other, nobody else sends anything."""
    counts = [[0] * num_ranks for _ in range(num_ranks)]
    for a, b in pairs:
        counts[a][b] = counts[b][a] = num_bytes
    group = tuple(range(num_ranks))
    return AllToAll(group, tuple(map(tuple, counts)), torch.uint8)


def _slowest(wire: Wire, seconds: float) -> float:
    """The largest of all ranks' times; nobody goes on before all are here."""
    move = AllReduce(tuple(range(wire.num_ranks)), 1, torch.float64, "max")
    given = torch.tensor([seconds], dtype=torch.float64)
    return float(wire.submit(move, given, key="calibrate.slowest").wait())


def _unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where one comes twice (emulated hosts share one)."""
    if len(set(names)) == len(names):
        return list(names)
    return [f"{name}-{i}" for i, name in enumerate(names)]


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.2f} GB/s"
    return f"{bytes_per_s / 1e6:.1f} MB/s"
