"""Seconds of steps: as the algorithms' own for one group, shared links for several."""

import time
from itertools import product

import pytest
import torch

from placet.boxing.algorithms import choose
from placet.boxing.algorithms import seconds as move_seconds
from placet.boxing.path import direct_step
from placet.boxing.plan import lower_step
from placet.cost.links import Links
from placet.placement.cluster import Cluster, Host, LinkClass
from placet.placement.layout import Layout, Shape
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S

MEMORY = LinkClass("memory", 1e-5, 8e9)
NETWORK = LinkClass("network", 1e-4, 1.25e8)
UPLINK = LinkClass("uplink", 3e-4, 5e7)


def cluster_of(*num_ranks: int, groups: int = 1) -> Cluster:
    hosts = tuple(
        Host(f"h{i}", n, 1 << 33, "memory", f"g{i % groups}" if groups > 1 else "")
        for i, n in enumerate(num_ranks)
    )
    return Cluster(hosts, (MEMORY, NETWORK, UPLINK), "network", "uplink")


CLUSTERS = [
    cluster_of(4),
    cluster_of(1, 1, 1, 1),
    cluster_of(2, 2),
    cluster_of(3, 1),
    cluster_of(1, 1, 1, 1, groups=2),
    cluster_of(2, 2, 2),
    cluster_of(1, 1, 1),
]
ONE: list[Placement] = [S(0), S(1), B, P()]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: f"{c.num_ranks}")
@pytest.mark.parametrize("shape", [(12, 12), (12, 1200), (2400, 2400)])
def test_one_group_costs_what_its_move_costs(cluster: Cluster, shape: Shape):
    mesh = Mesh(f"a={cluster.num_ranks}")
    links = Links(mesh, cluster)
    count = 0
    for src, dst in product(ONE, repeat=2):
        step = direct_step(
            (shape,), torch.float32, Layout(mesh, [src]), Layout(mesh, [dst])
        )
        move = None if step is None else lower_step(step, 0).move
        if step is None or move is None:
            continue
        expected = move_seconds(choose(move, cluster), cluster)
        assert links.step_seconds(step) == pytest.approx(expected, rel=0.01)
        count += 1
    assert count == 7


def test_groups_share_their_hosts_links():
    cluster = cluster_of(2, 2)
    mesh = Mesh("data=2, model=2")
    links = Links(mesh, cluster)
    inside = links.seconds(("model",), "gather", 1 << 24)
    across = links.seconds(("data",), "gather", 1 << 24)
    assert inside == pytest.approx(1e-5 + (1 << 23) / 8e9)
    # Both pairs cross at once: each host's link carries half of n for each of the two.
    assert across == pytest.approx(1e-4 + 2 * (1 << 23) / 1.25e8)


def test_an_all_reduce_takes_the_algorithm_that_one_group_chooses():
    cluster = cluster_of(4, 4)
    links = Links(Mesh("a=8"), cluster)
    big = links.seconds(("a",), "reduce", 1 << 26)
    # Hierarchical: rings of n in the hosts; across, all quarters share the one link.
    expected = 6 * 1e-5 + 2 * 1e-4 + (1 << 26) * (1.5 / 8e9 + 1 / 1.25e8 + 1 / 16e9)
    ring = 14 * 1e-4 + (1 << 26) * 1.75 / 1.25e8
    assert big == pytest.approx(expected, rel=0.01)
    assert big < ring


def test_a_halo_costs_its_borders():
    cluster = cluster_of(1, 1, 1, 1)
    mesh = Mesh("a=4")
    src, dst = Layout(mesh, [S(0)]), Layout(mesh, [S(0, (1, 1))])
    step = direct_step(((400, 1000),), torch.float32, src, dst)
    assert step is not None
    found = Links(mesh, cluster).step_seconds(step)
    received = 2 * 1000 * 4  # an inner rank's
    assert received / NETWORK.link_bytes_per_s < found
    assert found < 2 * NETWORK.latency_s + 2 * received / NETWORK.link_bytes_per_s


def test_what_moves_nothing_costs_the_links_nothing():
    mesh = Mesh("a=4")
    step = direct_step(
        ((8, 8),), torch.float32, Layout(mesh, [B]), Layout(mesh, [S(0)])
    )
    assert step is not None
    assert Links(mesh, CLUSTERS[0]).step_seconds(step) == 0


def test_a_mesh_larger_than_the_cluster_is_refused():
    with pytest.raises(ValueError, match="the cluster has 4 ranks"):
        Links(Mesh("a=8"), CLUSTERS[0]).seconds(("a",), "gather", 1024)


def test_a_thousand_ranks_are_quick():
    links = Links(Mesh("a=16, b=8, c=8"), cluster_of(*[8] * 128))
    began = time.process_time()
    for axes in [("a",), ("b",), ("c",), ("a", "b"), ("a", "b", "c")]:
        for kind in ("gather", "scatter", "reduce", "exchange"):
            assert links.seconds(axes, kind, 1 << 20) > 0  # type: ignore[arg-type]
    assert time.process_time() - began < 3
    began = time.process_time()
    for n in range(1000):
        links.seconds(("a", "b"), "reduce", 1000.0 + n)
    assert time.process_time() - began < 0.1
