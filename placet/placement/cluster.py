"""A cluster: which hosts there are, their memory, and what links join their ranks.

Like a mesh it is a pure value, read from a TOML file, so that plans can be made for
machines that are not at hand:

    [links.memory]
    latency_s = 2e-5
    link_bytes_per_s = 4e9

    [links.network]
    latency_s = 1e-4
    link_bytes_per_s = 1.25e9
    num_sockets = 2           # what two ranks need to fill it; 1 if left out

    [[hosts]]
    name = "a"
    num_ranks = 2
    memory_bytes = 8589934592
    link = "memory"           # joins ranks of this host

    [[hosts]]
    name = "b"
    num_ranks = 2
    memory_bytes = 8589934592
    link = "memory"

    [between]
    hosts = "network"         # joins hosts of one group; groups = "..." joins groups
"""

import os
import platform
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class LinkClass:
    """A kind of link: a message of n bytes takes latency_s + n / link_bytes_per_s.

    Args:
        name: unique in the cluster.
        latency_s, link_bytes_per_s: see above.
        num_sockets: how many sockets two ranks need to fill it; more than one on long
            fast links.
    """

    name: str
    latency_s: float
    link_bytes_per_s: float
    num_sockets: int = 1

    def __post_init__(self) -> None:
        if self.latency_s < 0 or self.link_bytes_per_s <= 0:
            raise ValueError(
                f"link {self.name!r}: latency_s={self.latency_s}, link_bytes_per_s="
                f"{self.link_bytes_per_s}; need a latency >= 0 and a rate > 0"
            )
        if self.num_sockets < 1:
            raise ValueError(
                f"link {self.name!r}: num_sockets={self.num_sockets}; at least 1"
            )

    def seconds(self, num_bytes: float) -> float:
        """How long one message of so many bytes takes."""
        return self.latency_s + num_bytes / self.link_bytes_per_s


@dataclass(frozen=True)
class Host:
    """A machine with some ranks.

    Args:
        name: unique in the cluster.
        num_ranks: how many ranks it runs.
        memory_bytes: what all its ranks share.
        link: the name of the link class between its ranks.
        group: hosts of one group are joined by `between_hosts`.
    """

    name: str
    num_ranks: int
    memory_bytes: int
    link: str
    group: str = ""

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.memory_bytes < 1:
            raise ValueError(
                f"host {self.name!r}: num_ranks={self.num_ranks}, memory_bytes="
                f"{self.memory_bytes}; both must be at least 1"
            )


@dataclass(frozen=True)
class Cluster:
    """Hosts and the links between their ranks.

    Ranks are numbered host by host, in the order of `hosts`.

    Args:
        hosts: the machines.
        links: the link classes that they name.
        between_hosts: joins hosts of one group; may be "" if no group has two.
        between_groups: joins groups; may be "" if there is one.

    Raises:
        ValueError: no hosts, a name used twice, or a link that is not in `links`.
    """

    hosts: tuple[Host, ...]
    links: tuple[LinkClass, ...]
    between_hosts: str = ""
    between_groups: str = ""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("a cluster needs at least one host")
        _check_unique("host", [host.name for host in self.hosts])
        _check_unique("link", [link.name for link in self.links])
        groups = [host.group for host in self.hosts]
        used = {host.link: f"host {host.name!r}" for host in self.hosts}
        if len(set(groups)) < len(groups):
            used[self.between_hosts] = "between.hosts"
        if len(set(groups)) > 1:
            used[self.between_groups] = "between.groups"
        known = [link.name for link in self.links]
        for name, where in used.items():
            if name not in known:
                raise ValueError(
                    f"{where} names the link {name!r}; the cluster's links are {known}"
                )

    @property
    def num_ranks(self) -> int:
        """How many ranks all hosts run."""
        return sum(host.num_ranks for host in self.hosts)

    def host(self, rank: int) -> Host:
        """The host that runs a rank.

        Raises:
            ValueError: the cluster has no such rank.
        """
        first = 0
        for host in self.hosts:
            if first <= rank < first + host.num_ranks:
                return host
            first += host.num_ranks
        raise ValueError(f"rank {rank} is not one of the cluster's {self.num_ranks}")

    def memory_bytes(self, rank: int) -> int:
        """A rank's share of its host's memory."""
        host = self.host(rank)
        return host.memory_bytes // host.num_ranks

    def link(self, src: int, dst: int) -> LinkClass:
        """The link class that joins two ranks."""
        a, b = self.host(src), self.host(dst)
        name = self.between_groups
        if a is b:
            name = a.link
        elif a.group == b.group:
            name = self.between_hosts
        return next(link for link in self.links if link.name == name)

    @staticmethod
    def here(num_ranks: int | None = None) -> "Cluster":
        """This machine: one rank per GPU, or per core where there is none.

        Its link is a guess until it is calibrated: 50 us, 2 GB/s.

        Args:
            num_ranks: another number of ranks.
        """
        cores = len(os.sched_getaffinity(0))
        if num_ranks is None:
            num_ranks = torch.cuda.device_count() or cores
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if torch.cuda.is_available():
            devices = range(torch.cuda.device_count())
            memory = sum(
                torch.cuda.get_device_properties(i).total_memory for i in devices
            )
        host = Host(platform.node() or "here", num_ranks, memory, "local")
        return Cluster((host,), (LinkClass("local", 5e-5, 2e9),))

    @staticmethod
    def load(path: str | Path) -> "Cluster":
        """Read a cluster from a TOML file, or one that placet brings by its name.

        Args:
            path: of a file, or "lab", "gpus16" or "nodes128x8", whose numbers are
                nominal.

        Raises:
            ValueError: the file is not TOML or describes no cluster; says why.
            FileNotFoundError: no such file, and no cluster of that name.
        """
        found = Path(path)
        if str(path) in shipped() and not found.exists():
            found = SHIPPED / f"{path}.toml"
        try:
            return parse(found.read_text())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the cluster to a TOML file that `load` reads."""
        Path(path).write_text(render(self))


SHIPPED = Path(__file__).with_name("clusters")
"""The folder of the clusters that placet brings."""


def shipped() -> list[str]:
    """The names of the clusters that placet brings."""
    return sorted(file.stem for file in SHIPPED.glob("*.toml"))


def parse(text: str) -> Cluster:
    """A cluster from the text of a TOML file; see the module for the form."""
    found = tomllib.loads(text)
    _check_keys("the file", found, {"links", "hosts"}, {"between"})
    _check_kind("links", found["links"], dict, "[links.NAME]")
    _check_kind("hosts", found["hosts"], list, "[[hosts]]")
    links = []
    for name, link in found["links"].items():
        needed = {"latency_s", "link_bytes_per_s"}
        _check_keys(f"links.{name}", link, needed, {"num_sockets"})
        for key, value in link.items():
            _check_kind(f"links.{name}.{key}", value, (int, float), "a number")
        num_sockets = link.get("num_sockets", 1)
        _check_kind(f"links.{name}.num_sockets", num_sockets, int, "a whole number")
        links.append(LinkClass(name, **link))
    hosts = []
    for i, host in enumerate(found["hosts"]):
        needed = {"name", "num_ranks", "memory_bytes", "link"}
        _check_keys(f"hosts[{i}]", host, needed, {"group"})
        for key in ("num_ranks", "memory_bytes"):
            _check_kind(f"hosts[{i}].{key}", host[key], int, "a whole number")
        hosts.append(Host(**host))
    between = found.get("between", {})
    _check_keys("between", between, set(), {"hosts", "groups"})
    return Cluster(
        tuple(hosts), tuple(links), between.get("hosts", ""), between.get("groups", "")
    )


def render(cluster: Cluster) -> str:
    """The text of a TOML file that `parse` reads."""
    lines = []
    for link in cluster.links:
        lines += [f"[links.{_quote(link.name)}]", f"latency_s = {link.latency_s!r}"]
        lines += [f"link_bytes_per_s = {link.link_bytes_per_s!r}"]
        lines += [f"num_sockets = {link.num_sockets}", ""]
    for host in cluster.hosts:
        lines += ["[[hosts]]", f"name = {_quote(host.name)}"]
        lines += [f"num_ranks = {host.num_ranks}"]
        lines += [f"memory_bytes = {host.memory_bytes}", f"link = {_quote(host.link)}"]
        lines += [f"group = {_quote(host.group)}", ""]
    lines += ["[between]", f"hosts = {_quote(cluster.between_hosts)}"]
    lines += [f"groups = {_quote(cluster.between_groups)}", ""]
    return "\n".join(lines)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _check_unique(kind: str, names: list[str]) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"the {kind} {min(twice)!r} is there twice; give it two names")


def _check_kind(
    where: str, value: object, kind: type | tuple[type, ...], form: str
) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be written as {form}, got {value!r}")


def _check_keys(
    where: str,
    found: Any,
    needed: set[str],
    optional: set[str] | frozenset[str] = frozenset(),
) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be a table with {sorted(needed | optional)}")
    missing, unknown = needed - found.keys(), found.keys() - needed - optional
    if missing:
        raise ValueError(f"{where} lacks {sorted(missing)}")
    if unknown:
        allowed = sorted(needed | optional)
        raise ValueError(
            f"{where} has unknown keys {sorted(unknown)}; known: {allowed}"
        )
