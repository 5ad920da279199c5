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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from placet.job import session
from placet.job.launch import launch
from placet.job.link_fit import (
    LinkFit,
    Pair,
    Timed,
    fit,
    host_groups,
    pooled,
    rounds,
    tournament,
)
from placet.job.link_timing import time_pairs
from placet.job.process import cores, die_with_parent
from placet.placement.cluster import Cluster, Host
from placet.settings import worker
from placet.torch_private.c10d import default_store
from placet.wire.engine.connect import connect_engine
from placet.wire.engine.hosts import host_name
from placet.wire.interface import Wire
from placet.wire.torch_store import TorchStore

SOCKETS = (1, 2, 4)
"""How many sockets each pair of ranks on two hosts may use."""

MOST_SPREAD = 0.25
"""Where times vary by more, a measurement says little."""

ENOUGH = 0.95
"""Fewer sockets that reach this share of the best rate are preferred."""

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
    """What was measured, and the cluster that it describes.

    Args:
        measurements: one for each link class.
        cluster: the same for planner and wire. What joins hosts is there as one link a
            host, which its ranks share.
        sockets: (number of sockets, bytes/s of the link between two hosts) where the
            engine's ranks use so many each; empty on one host.
    """

    measurements: tuple[Measurement, ...]
    cluster: Cluster
    sockets: tuple[tuple[int, float], ...] = ()


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
    wire = session.current_wire()
    found = measure_links(wire)
    if len(found.cluster.hosts) > 1:
        sockets = _by_sockets(wire, found.cluster)
        cluster = with_sockets(found.cluster, sockets)
        found = replace(found, cluster=cluster, sockets=sockets)
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
        times |= time_pairs(wire, pairs, f"round{number}")
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
    for (a, b), found in between.items():
        if a != b:  # all pairs went at once, over the hosts' own two links
            between[a, b] = [carried(timed, len(found)) for timed in found]
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


def carried(timed: Sequence[Timed], num_pairs: int) -> tuple[Timed, ...]:
    """A pair's times, as those of all the bytes that its hosts' link carried then."""
    return tuple(Timed(t.num_bytes * num_pairs, t.seconds) for t in timed)


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


def print_measurements(found: Calibration, console: Console) -> None:
    """The link classes as a table."""
    table = Table(title="Links, with all ranks running at once", title_justify="left")
    table.add_column("between", no_wrap=True)
    for column in ("pairs", "latency", "rate", "spread", "misfit", "slowest"):
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
    if max(m.line.spread for m in found.measurements) > MOST_SPREAD:
        console.print(
            f"a spread above {MOST_SPREAD:.0%}: other work ran meanwhile; measure "
            "again when the machines are quiet",
            style="yellow",
        )
    if len(found.cluster.hosts) > 1:
        console.print(
            "a host's ranks share its link to others; its whole rate is shown"
        )
    if found.sockets:
        rates = (f"{number}: {_rate(rate)}" for number, rate in found.sockets)
        console.print(f"between two hosts, by sockets a pair: {', '.join(rates)}")


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


def with_sockets(cluster: Cluster, rates: Sequence[tuple[int, float]]) -> Cluster:
    """The cluster with as many sockets between hosts as it takes to fill the link.

    Args:
        cluster: as measured with one.
        rates: (number of sockets, bytes/s).
    """
    best = max(rate for _, rate in rates)
    fewest = min(number for number, rate in rates if rate >= best * ENOUGH)
    links = (
        link if link.name == WITHIN else replace(link, num_sockets=fewest)
        for link in cluster.links
    )
    return replace(cluster, links=tuple(links))


def _by_sockets(wire: Wire, cluster: Cluster) -> tuple[tuple[int, float], ...]:
    """What the engine gets out of the link between hosts, by number of sockets."""
    here = worker()
    firsts = list(accumulate((h.num_ranks for h in cluster.hosts), initial=0))
    hosts = [range(a, b) for a, b in pairwise(firsts)]
    a, b = tournament(len(hosts))[0][0]
    pairs = tuple(zip(hosts[a], hosts[b], strict=False))
    found = []
    for num_sockets in SOCKETS:
        engine = connect_engine(
            TorchStore(default_store(), f"calibrate/{num_sockets}"),
            wire.rank,
            wire.num_ranks,
            num_sockets=num_sockets,
            towards=None if here is None else here.master_address,
        )
        times = time_pairs(engine, pairs, f"sockets.{num_sockets}")
        line = fit(pooled([carried(timed, len(pairs)) for timed in times.values()]))
        found.append((num_sockets, line.link_bytes_per_s))
        engine.close()
    return tuple(found)


def _unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where one comes twice (emulated hosts share one)."""
    if len(set(names)) == len(names):
        return list(names)
    return [f"{name}-{i}" for i, name in enumerate(names)]


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.2f} GB/s"
    return f"{bytes_per_s / 1e6:.1f} MB/s"
