"""The lab's network: hosts as Linux network namespaces behind shaped links.

    host 0 [eth0]====[h0]-+                        each ==== is a veth pair, shaped by
    host 1 [eth0]====[h1]-+- bridge g0 [u0]====[d0]-+   tc tbf on both ends
                                                    +- bridge core
    host 2 [eth0]====[h2]-+- bridge g1 [u1]====[d1]-+
    host 3 [eth0]====[h3]-+

Without groups the hosts hang on `core` itself. The bridges live in one more namespace,
so nothing here touches the machine's own network. Latency is not emulated.

Where each host has an uplink of its own, it has a second card for it, on `core`:

    host 0 [eth0]====[h0]- bridge g0          host 0 [eth1]====[x0]-+
    host 1 [eth0]====[h1]- bridge g0          host 1 [eth1]====[x1]-+- bridge core
    host 2 [eth0]====[h2]- bridge g1          host 2 [eth1]====[x2]-+

A host still has one address, that of eth0; its routes lead to other groups by eth1.

Names carry the process that made them: what a killed lab left behind is removed when
the next one starts.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from placet.errors import LabError

_NAME = re.compile(r"placet-lab-(\d+)\.(\d+)-\d+-\w+")
_BURST = ("burst", "256kb", "latency", "200ms")
_HOSTS_PER_BLOCK = 250
_FILES = Path("/etc/netns")  # `ip netns exec` lays NAME/* over /etc


@dataclass(frozen=True)
class Network:
    """A built network.

    Args:
        hosts: the namespace of each host.
        switch: the namespace of the bridges.
        uplinks: (namespace, interface) of the lower end of each uplink, in the order of
            the groups, or of the hosts where each has its own.
    """

    hosts: tuple[str, ...]
    switch: str
    uplinks: tuple[tuple[str, str], ...] = ()

    def address(self, host: int) -> str:
        """The address of a host, known inside the lab only."""
        return _address(host)


def build(
    index: int,
    groups: Sequence[int],
    rate: str,
    group_rate: str | None,
    *,
    uplink_per_host: bool = False,
) -> Network:
    """Make the namespaces, bridges and shaped links.

    Args:
        index: tells this process's labs apart.
        groups: how many hosts each group has; one group means no uplinks.
        rate: each host's link, as tc writes it: "100mbit".
        group_rate: each uplink; None where there is one group.
        uplink_per_host: each host has an uplink of its own, instead of each group.

    Raises:
        LabError: no root, no iproute2, or the kernel lacks namespaces or tbf.
    """
    _check_machine()
    remove_stale()
    prefix = f"placet-lab-{os.getpid()}.{_started(os.getpid())}-{index}"
    hosts = tuple(f"{prefix}-h{h}" for h in range(sum(groups)))
    switch = f"{prefix}-switch"
    uplinks = [(switch, f"u{group}") for group in range(len(groups))]
    if uplink_per_host:
        uplinks = [(namespace, "eth1") for namespace in hosts]
    network = Network(hosts, switch, tuple(uplinks) if group_rate else ())
    try:
        for namespace in (network.switch, *network.hosts):
            _run("ip", "netns", "add", namespace)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            _without_ipv6(namespace)
        _name_hosts(network)
        _bridge(network.switch, "core")
        group_of = [g for g, num_hosts in enumerate(groups) for _ in range(num_hosts)]
        for group in range(len(groups)) if group_rate else ():
            _bridge(switch, f"g{group}")
            if group_rate is not None and not uplink_per_host:
                _group_uplink(switch, group, group_rate)
        for host, group in enumerate(group_of):
            bridge = f"g{group}" if group_rate else "core"
            _card(network, host, "eth0", f"h{host}", bridge, rate)
            _run(
                *("ip", "-n", hosts[host], "addr", "add", f"{_address(host)}/16"),
                *("dev", "eth0"),
            )
            if group_rate is not None and uplink_per_host:
                _card(network, host, "eth1", f"x{host}", "core", group_rate)
                others = [h for h, g in enumerate(group_of) if g != group]
                _route_by_uplink(network, host, others)
    except BaseException:
        remove(network)
        raise
    return network


def remove(network: Network) -> None:
    """Kill what still runs in the network and take it down."""
    _remove((*network.hosts, network.switch))


def remove_stale() -> list[str]:
    """Remove the networks of labs whose process is gone; returns their namespaces."""
    stale = [
        namespace
        for namespace in _namespaces()
        if (found := _NAME.fullmatch(namespace))
        and _started(int(found[1])) != int(found[2])
    ]
    _remove(stale)
    return stale


def kill_processes(namespaces: Sequence[str], within_seconds: float = 3.0) -> None:
    """Kill every process in the namespaces, also those that left their parent.

    Raises:
        LabError: some are still there after `within_seconds`.
    """
    deadline = time.monotonic() + within_seconds
    while pids := [pid for name in namespaces for pid in _pids(name)]:
        if time.monotonic() > deadline:
            raise LabError(f"processes {pids} in the lab do not die, even by SIGKILL")
        for pid in pids:
            _kill(pid)
        time.sleep(0.02)


def card_bytes(network: Network) -> tuple[tuple[int, int], ...]:
    """Bytes (sent, received) by each host's network card so far."""
    return tuple(_counters(namespace, "eth0") for namespace in network.hosts)


def card_packets(network: Network) -> tuple[tuple[int, int], ...]:
    """Packets (sent, received) by each host's network card so far.

    The kernel hands a card up to 64 KiB at once, behind one header; it counts as one.
    """
    return tuple(_counters(name, "eth0", "packets") for name in network.hosts)


def uplink_bytes(network: Network) -> tuple[tuple[int, int], ...]:
    """Bytes (sent to, received from) the core over each uplink so far."""
    return tuple(_counters(*uplink) for uplink in network.uplinks)


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise LabError(
            f"the lab makes network namespaces, which needs root; this is user "
            f"{os.geteuid()}. Run it with sudo, or train on plain local workers with "
            "`placet train ... -n 4`"
        )
    missing = [tool for tool in ("ip", "tc", "setpriv") if shutil.which(tool) is None]
    if missing:
        raise LabError(
            f"the lab needs {', '.join(missing)}, not found on this machine; install "
            "iproute2 and util-linux (Debian: apt install iproute2 util-linux)"
        )


def _card(
    network: Network, host: int, card: str, port: str, bridge: str, rate: str
) -> None:
    namespace = network.hosts[host]
    _run(
        *("ip", "-n", network.switch, "link", "add", port, "type", "veth"),
        *("peer", "name", card, "netns", namespace),
    )
    _run("ip", "-n", network.switch, "link", "set", port, "master", bridge, "up")
    _run("ip", "-n", namespace, "link", "set", card, "up")
    _shape(namespace, card, rate)
    _shape(network.switch, port, rate)


def _route_by_uplink(network: Network, host: int, others: Sequence[int]) -> None:
    # eth1 needs no address: the kernel answers on every card for all of a host's.
    for other in others:
        _run(
            *("ip", "-n", network.hosts[host], "route", "add", _address(other)),
            *("dev", "eth1", "scope", "link", "src", _address(host)),
        )


def _group_uplink(switch: str, group: int, group_rate: str) -> None:
    bridge, up, down = f"g{group}", f"u{group}", f"d{group}"
    _run("ip", "-n", switch, "link", "add", up, "type", "veth", "peer", "name", down)
    _run("ip", "-n", switch, "link", "set", up, "master", bridge, "up")
    _run("ip", "-n", switch, "link", "set", down, "master", "core", "up")
    _shape(switch, up, group_rate)
    _shape(switch, down, group_rate)


def _bridge(namespace: str, name: str) -> None:
    _run("ip", "-n", namespace, "link", "add", name, "type", "bridge")
    _run("ip", "-n", namespace, "link", "set", name, "up")


def _shape(namespace: str, interface: str, rate: str) -> None:
    link = ("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root")
    _run(*link, "tbf", "rate", rate, *_BURST)


def _without_ipv6(namespace: str) -> None:
    # Router solicitations and the like would count on the cards.
    switch = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
    off = f"if [ -e {switch} ]; then echo 1 > {switch}; fi"
    _run("ip", "netns", "exec", namespace, "sh", "-c", off)


def _name_hosts(network: Network) -> None:
    # Without names each connection asks a name server that cannot be reached.
    lines = ["127.0.0.1 localhost"]
    for host in range(len(network.hosts)):
        # A socket that speaks IPv6 sees the second form, and asks for its name too.
        for form in (_address(host), f"::ffff:{_address(host)}"):
            lines.append(f"{form} host{host}")
    for namespace in network.hosts:
        (_FILES / namespace).mkdir(parents=True)
        (_FILES / namespace / "hosts").write_text("\n".join(lines) + "\n")


def _address(host: int) -> str:
    block, place = divmod(host, _HOSTS_PER_BLOCK)
    return f"10.77.{block}.{place + 1}"


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines()]


def _counters(
    namespace: str, interface: str, unit: Literal["bytes", "packets"] = "bytes"
) -> tuple[int, int]:
    shown = _run("ip", "-n", namespace, "-s", "-j", "link", "show", interface)
    stats = json.loads(shown)[0]["stats64"]
    return int(stats["tx"][unit]), int(stats["rx"][unit])


def _remove(namespaces: Sequence[str]) -> None:
    there = set(_namespaces()) if namespaces else set()
    ours = [name for name in namespaces if name in there]
    kill_processes(ours)
    for name in ours:
        shutil.rmtree(_FILES / name, ignore_errors=True)
        try:
            _run("ip", "netns", "delete", name)
        except LabError:
            if name in _namespaces():  # else another lab cleaned it up just now
                raise


def _pids(namespace: str) -> list[int]:
    try:
        return [int(pid) for pid in _run("ip", "netns", "pids", namespace).split()]
    except LabError:
        if namespace in _namespaces():
            raise
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself since it was listed


def _started(pid: int) -> int | None:
    """When a process started (clock ticks since boot); None if there is none.

    A process id comes again; with its start it does not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _run(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise LabError(
            f"the lab could not be built: `{' '.join(command)}` said "
            f"{done.stderr.strip()!r}; it needs a kernel with network namespaces, "
            "bridges, veth and the tbf queue, and the right to use them"
        )
    return done.stdout
