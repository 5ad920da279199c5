"""Calibrating links: the line, who talks to whom, groups of hosts, and a whole run."""

import io
import random
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from placet.job.calibrate import (
    HOSTS,
    WITHIN,
    Place,
    calibration,
    print_measurements,
    ranks_by_host,
    with_sockets,
)
from placet.job.cli import BAD_INPUT, app
from placet.job.link_fit import Timed, fit, host_groups, rounds, tournament
from placet.job.link_timing import slower
from placet.placement.cluster import Cluster, Host, LinkClass

SIZES = (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22)


def line(latency_s: float, bytes_per_s: float, *, noise: float = 0.0) -> list[Timed]:
    """Times on a line; noise only ever makes a message later, at times very late."""
    late = random.Random(0)
    return [
        Timed(
            n,
            tuple(
                (latency_s + n / bytes_per_s)
                * (1 + noise * late.random() ** 4 * (50 if late.random() < 0.1 else 1))
                for _ in range(15)
            ),
        )
        for n in SIZES
    ]


def test_fit_finds_a_line():
    found = fit(line(5e-5, 2e9))
    assert found.latency_s == pytest.approx(5e-5)
    assert found.link_bytes_per_s == pytest.approx(2e9)
    assert found.spread == 0
    assert found.misfit == pytest.approx(0, abs=1e-9)
    assert found.link("x").seconds(1 << 20) == pytest.approx(5e-5 + 2**20 / 2e9)


def test_fit_bears_late_messages():
    found = fit(line(1e-3, 1e8, noise=0.5))
    assert found.latency_s == pytest.approx(1e-3, rel=0.1)
    assert found.link_bytes_per_s == pytest.approx(1e8, rel=0.1)
    assert found.spread > 0


def test_fit_sees_past_a_bucket_that_lets_small_messages_through():
    bucket, bytes_per_s = 1 << 18, 12.5e6
    timed = [Timed(n, (1e-4 + max(0, n - bucket) / bytes_per_s,) * 5) for n in SIZES]
    found = fit(timed)
    assert found.link_bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)
    assert 0 <= found.latency_s <= 1e-4


@pytest.mark.parametrize(
    ("timed", "message"),
    [
        ([Timed(1 << 10, (1.0,)), Timed(1 << 20, (2.0,))], "two message sizes"),
        ([Timed(1 << 20, (2.0,)), Timed(1 << 22, (1.0,))], "took no longer"),
    ],
)
def test_fit_refuses(timed, message):
    with pytest.raises(ValueError, match=message):
        fit(timed)


@pytest.mark.parametrize("num_players", [0, 1, 2, 3, 4, 7, 8])
def test_tournament_joins_all_once(num_players: int):
    met = tournament(num_players)
    pairs = [pair for turn in met for pair in turn]
    everyone = [(a, b) for b in range(num_players) for a in range(b)]
    assert sorted(pairs) == sorted(everyone)
    for turn in met:
        players = [player for pair in turn for player in pair]
        assert len(players) == len(set(players))
    assert len(met) <= num_players


def test_rounds_join_neighbours_on_a_host_then_hosts_rank_by_rank():
    assert rounds([(0, 1, 2), (3, 4)]) == (((0, 1), (3, 4)), ((0, 3), (1, 4)))
    assert rounds([(0,), (1,)]) == (((0, 1),),)
    assert rounds([(0,)]) == ()


def all_pairs(num_hosts: int, groups, near: float, far: float):
    return {
        (a, b): near * (1 + 0.01 * a) if groups[a] == groups[b] else far
        for b in range(num_hosts)
        for a in range(b)
    }


@pytest.mark.parametrize(
    ("groups", "near", "far", "expected"),
    [
        ((0, 0, 1, 1), 1e9, 1e8, (0, 0, 1, 1)),
        ((0, 1, 0, 1, 2), 1e9, 5e8, (0, 1, 0, 1, 2)),
        ((0, 0, 1, 1), 1e9, 9e8, (0, 0, 0, 0)),
        ((0, 1), 1e9, 1e8, (0, 0)),
        ((0,), 1e9, 1e8, (0,)),
    ],
)
def test_host_groups(groups, near, far, expected):
    num_hosts = len(groups)
    assert host_groups(all_pairs(num_hosts, groups, near, far), num_hosts) == expected


def test_host_groups_of_a_chain_are_none():
    assert host_groups({(0, 1): 10.0, (1, 2): 10.0, (0, 2): 1.0}, 3) == (0, 0, 0)


def test_calibration_names_each_class_and_describes_the_cluster():
    hosts = ranks_by_host(["a", "a", "b", "b", "c", "c"])
    rates = {(0, 0): 4e9, (0, 1): 1e9, (0, 2): 1e8}
    of_host = {rank: h for h, ranks in enumerate(hosts) for rank in ranks}
    # Two ranks share their host's link to others: each gets half of it.
    share = {0: 1, 1: 2, 2: 2}
    near = {(0, 1), (1, 0)}
    times = {}
    for pairs in rounds(hosts):
        for a, b in pairs:
            ends = (of_host[a], of_host[b])
            kind = 0 if ends[0] == ends[1] else 1 if ends in near else 2
            times[a, b] = line(1e-4 * (kind + 1), rates[0, kind] / share[kind])
    places = [Place("abc"[r // 2], "node", 1 << 30) for r in range(6)]
    found = calibration(times, hosts, places)
    assert [(m.name, m.num_pairs) for m in found.measurements] == [
        ("memory", 3),
        ("network", 2),
        ("uplink", 4),
    ]
    cluster = found.cluster
    assert [h.name for h in cluster.hosts] == ["node-0", "node-1", "node-2"]
    assert [h.group for h in cluster.hosts] == ["group0", "group0", "group1"]
    for (a, b), rate in [((0, 1), 4e9), ((0, 2), 1e9), ((3, 4), 1e8)]:
        assert cluster.link(a, b).link_bytes_per_s == pytest.approx(rate)
    assert cluster.link(3, 4).latency_s == pytest.approx(3e-4)
    console = Console(file=io.StringIO(), width=100)
    print_measurements(found, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for shown in ("ranks of a host", "4.00 GB/s", "100.0 MB/s", "300 us"):
        assert shown in text


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (((1, 100.0), (2, 101.0), (4, 102.0)), 1),
        (((1, 50.0), (2, 99.0), (4, 100.0)), 2),
        (((1, 100.0), (2, 60.0), (4, 20.0)), 1),
    ],
)
def test_sockets_are_as_many_as_fill_the_link(rates, expected):
    links = (LinkClass(WITHIN, 1e-5, 1e9), LinkClass(HOSTS, 1e-4, 1e8))
    hosts = tuple(Host(name, 1, 1, WITHIN) for name in "ab")
    found = with_sockets(Cluster(hosts, links, HOSTS), rates)
    assert [link.num_sockets for link in found.links] == [1, expected]


def test_ranks_by_host_refuses_scattered_ranks():
    with pytest.raises(ValueError, match="host by host"):
        ranks_by_host(["a", "b", "a"])


def test_a_pair_is_as_slow_as_its_slower_end():
    ours, theirs = [Timed(8, (1.0, 5.0))], [Timed(8, (2.0, 3.0))]
    assert slower(ours, theirs) == (Timed(8, (2.0, 5.0)),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "add --links"), (["--links", "-n", "1"], "use -n 2 or more")],
)
def test_calibrate_refuses(arguments, message):
    result = CliRunner().invoke(app, ["calibrate", *arguments])
    assert result.exit_code == BAD_INPUT
    assert message in result.output


@pytest.mark.procs
def test_calibrate_two_ranks_and_write_the_cluster(tmp_path: Path):
    path = tmp_path / "cluster.toml"
    command = ["calibrate", "--links", "-n", "2", "--cluster-out", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "placet", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ranks of a host" in done.stdout
    assert str(path) in done.stdout.replace("\n", "")
    cluster = Cluster.load(path)
    assert cluster.num_ranks == 2
    link = cluster.link(0, 1)
    assert link.name == "memory"
    assert link.latency_s < 0.1
    assert 1e6 < link.link_bytes_per_s < 1e12
