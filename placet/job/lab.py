"""The lab: a cluster with slow links on one Linux machine, for tests and benches.

    result = run_in_lab(Lab(hosts=4, rate="100mbit"), ["python", "train.py"])
    result.card_bytes[0]        # what host 0's network card sent and received

Each host is a network namespace with a card of its own and a link of the stated rate
(`placet.job.lab_network` draws it); the command runs once per rank, as a torchrun
worker does. Ranks of one host share its card and talk to each other past it. The cards'
counters are an independent check on placet's own ledger.

It needs root and iproute2, and says so where they are missing. Latency is not emulated.
"""

import itertools
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

from placet.errors import LabError
from placet.job.lab_network import (
    Network,
    build,
    card_bytes,
    card_packets,
    kill_processes,
    remove,
    uplink_bytes,
)
from placet.job.lab_processes import OnLine, Start, run
from placet.job.process import cores
from placet.settings import child_environment

_RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")
_GROUPS = re.compile(r"(\d+)x(\d+)")
_FIRST_PORT = 29500
_index = itertools.count()


@dataclass(frozen=True)
class Lab:
    """A cluster to emulate.

    Args:
        hosts: how many hosts, >= 1.
        ranks_per_host: how many ranks share a host's card, >= 1.
        rate: each host's link, both ways, as tc writes it: "100mbit", "1gbit".
        groups: "2x3": 2 groups of 3 hosts, each behind an uplink; None: no groups.
        group_rate: each group's uplink, both ways; given with `groups`.
        uplink_per_host: each host has an uplink of its own at that rate, and none is
            shared by a group.
        pin: give each host a core of its own, in turn.

    Raises:
        ValueError: a number below 1, a rate tc cannot read, or groups that do not fit.
    """

    hosts: int = 2
    ranks_per_host: int = 1
    rate: str = "100mbit"
    groups: str | None = None
    group_rate: str | None = None
    uplink_per_host: bool = False
    pin: bool = False

    def __post_init__(self) -> None:
        for name, number in (("hosts", self.hosts), ("ranks", self.ranks_per_host)):
            if number < 1:
                raise ValueError(f"a lab needs at least 1 of its {name}, got {number}")
        for rate in (self.rate, self.group_rate):
            if rate is not None and not _RATE.fullmatch(rate):
                raise ValueError(f"cannot read rate {rate!r}; write it as '100mbit'")
        if (self.groups is None) != (self.group_rate is None):
            raise ValueError(
                f"groups={self.groups!r} and group_rate={self.group_rate!r} come "
                "together: groups='2x2', group_rate='50mbit'"
            )
        if self.uplink_per_host and self.groups is None:
            raise ValueError(
                "uplink_per_host=True without groups: no host would need its uplink; "
                "give groups='2x2', group_rate='50mbit'"
            )
        if sum(self.group_sizes) != self.hosts:
            raise ValueError(
                f"groups={self.groups!r} holds {sum(self.group_sizes)} hosts, the lab "
                f"has {self.hosts}; make them equal"
            )

    @property
    def num_ranks(self) -> int:
        """How many ranks the lab runs."""
        return self.hosts * self.ranks_per_host

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """How many hosts each group has; one group where there are no groups."""
        if self.groups is None:
            return (self.hosts,)
        found = _GROUPS.fullmatch(self.groups)
        if found is None:
            raise ValueError(
                f"cannot read groups {self.groups!r}; write GROUPSxHOSTS, as '2x2'"
            )
        return (int(found[2]),) * int(found[1])

    def host(self, rank: int) -> int:
        """The host that a rank runs on."""
        return rank // self.ranks_per_host


@dataclass(frozen=True)
class LabResult:
    """What a command did in the lab.

    Args:
        exit_codes: per rank; negative is the signal that ended it.
        first_failed: the first rank that failed, or None; the others were stopped then.
        seconds: from the first start to the last end.
        card_bytes: per host, bytes (sent, received) by its network card.
        card_packets: per host, packets (sent, received) that these bytes came in, each
            with a header of its own.
        uplink_bytes: per group, bytes (sent, received) over its uplink; per host where
            each has one of its own, which `card_bytes` then leaves out.
        output: per rank, what it printed.
    """

    exit_codes: tuple[int, ...]
    first_failed: int | None
    seconds: float
    card_bytes: tuple[tuple[int, int], ...]
    card_packets: tuple[tuple[int, int], ...]
    uplink_bytes: tuple[tuple[int, int], ...]
    output: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every rank ended well."""
        return self.first_failed is None


@dataclass(frozen=True)
class BuiltLab:
    """A lab that stands; made by `lab`."""

    lab: Lab
    network: Network

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float = 600,
        environment: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
    ) -> LabResult:
        """Run a command on every rank; see `run_in_lab`."""
        port = _FIRST_PORT + next(_index)
        starts = [
            self._start(rank, command, port, environment or {})
            for rank in range(self.lab.num_ranks)
        ]
        before, above = card_bytes(self.network), uplink_bytes(self.network)
        packets = card_packets(self.network)
        began = time.monotonic()
        try:
            ended = run(starts, timeout_seconds, on_line or print_line)
        finally:
            kill_processes(self.network.hosts)
        return LabResult(
            exit_codes=ended.exit_codes,
            first_failed=ended.first_failed,
            seconds=time.monotonic() - began,
            card_bytes=_since(before, card_bytes(self.network)),
            card_packets=_since(packets, card_packets(self.network)),
            uplink_bytes=_since(above, uplink_bytes(self.network)),
            output=ended.output,
        )

    def _start(
        self, rank: int, command: Sequence[str], port: int, extra: Mapping[str, str]
    ) -> Start:
        host = self.lab.host(rank)
        names = {
            "RANK": rank,
            "WORLD_SIZE": self.lab.num_ranks,
            "LOCAL_RANK": rank % self.lab.ranks_per_host,
            "LOCAL_WORLD_SIZE": self.lab.ranks_per_host,
            "GROUP_RANK": host,
            "GROUP_WORLD_SIZE": self.lab.hosts,
            "MASTER_ADDR": self.network.address(0),
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": 1,
            "PYTHONUNBUFFERED": 1,
        }
        return Start(
            namespace=self.network.hosts[host],
            command=tuple(command),
            environment=child_environment(
                {name: str(value) for name, value in names.items()} | dict(extra)
            ),
            core=host % cores() if self.lab.pin else None,
        )


def run_in_lab(
    wanted: Lab,
    command: Sequence[str],
    *,
    timeout_seconds: float = 600,
    environment: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
) -> LabResult:
    """Build a lab, run a command on every rank, and take the lab down.

    Each process gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT), GLOO_SOCKET_IFNAME and
    OMP_NUM_THREADS=1. When one fails the others are stopped within 5 s.

    Args:
        wanted: the cluster.
        command: the program and its arguments.
        timeout_seconds: for the command, not counting the building.
        environment: more variables for every rank.
        on_line: told every line as it comes; prints it behind its rank when left out.

    Raises:
        LabError: the lab cannot be built here, or the command ran too long.
    """
    with lab(wanted) as built:
        return built.run(
            command,
            timeout_seconds=timeout_seconds,
            environment=environment,
            on_line=on_line,
        )


@contextmanager
def lab(wanted: Lab) -> Iterator[BuiltLab]:
    """A lab that stands for as long as the block runs.

    Raises:
        LabError: no root, no iproute2, or the kernel lacks what it needs.
    """
    with _terminate_as_exit():
        network = build(
            next(_index),
            wanted.group_sizes,
            wanted.rate,
            wanted.group_rate,
            uplink_per_host=wanted.uplink_per_host,
        )
        try:
            yield BuiltLab(wanted, network)
        finally:
            remove(network)


@lru_cache(maxsize=1)
def lab_missing() -> str | None:
    """Why there can be no lab on this machine, or None; tests skip with it."""
    try:
        with lab(Lab(hosts=1)):
            return None
    except LabError as error:
        return str(error.args[0])


def print_line(rank: int, line: str) -> None:
    """Print a rank's line behind its number."""
    sys.stdout.write(f"[{rank}] {line}\n")
    sys.stdout.flush()


def _since(
    before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    return tuple(
        (sent - sent_before, received - received_before)
        for (sent_before, received_before), (sent, received) in zip(
            before, after, strict=True
        )
    )


@contextmanager
def _terminate_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that the lab is taken down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
