"""Which algorithm is chosen, and what it is said to cost."""

from dataclasses import replace

import pytest
import torch

from placet.boxing.algorithms import choose, seconds, stages
from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
)
from placet.placement.cluster import Cluster, Host, LinkClass

F32 = torch.float32
MEMORY = LinkClass("memory", 2e-5, 4e9)
NETWORK = LinkClass("network", 1e-4, 1.25e8)
GIB = 1 << 30

ONE_HOST = Cluster((Host("a", 8, GIB, "memory"),), (MEMORY,))
TWO_HOSTS = Cluster(
    (Host("a", 2, GIB, "memory"), Host("b", 2, GIB, "memory")),
    (MEMORY, NETWORK),
    "network",
)
FOUR_GROUPED = Cluster(
    tuple(Host(name, 1, GIB, "memory", name[0]) for name in ("a1", "a2", "b1", "b2")),
    (MEMORY, NETWORK),
    "memory",
    "network",
)
BLOCKS = ((0, 1), (2, 3))


SLOW_HOST = Cluster((Host("a", 32, GIB, "memory"),), (LinkClass("memory", 10.0, 4e9),))
"""So slow that one round less decides."""


def all_reduce(size: int, num_bytes: int) -> AllReduce:
    return AllReduce(tuple(range(size)), num_bytes // 4, F32)


def hierarchical(num_bytes: int) -> AllReduce:
    move = all_reduce(4, num_bytes)
    return replace(move, algorithm="hierarchical", blocks=BLOCKS)


@pytest.mark.parametrize(
    ("cluster", "size", "num_bytes", "algorithm"),
    [
        (ONE_HOST, 2, 4, "exchange"),
        (ONE_HOST, 2, 1 << 16, "exchange"),
        (ONE_HOST, 2, (1 << 16) + 4, "ring"),
        (SLOW_HOST, 4, 1 << 20, "direct"),
        (SLOW_HOST, 4, (1 << 20) + 4, "ring"),
        (ONE_HOST, 4, 4, "exchange"),
        (ONE_HOST, 8, 1 << 15, "doubling"),
        (ONE_HOST, 4, 1 << 24, "ring"),
        (TWO_HOSTS, 2, 1 << 24, "ring"),
        (TWO_HOSTS, 3, 1 << 24, "ring"),
        (TWO_HOSTS, 4, 1 << 24, "hierarchical"),
        (FOUR_GROUPED, 4, 1 << 24, "hierarchical"),
    ],
)
def test_all_reduce(cluster, size, num_bytes, algorithm):
    found = choose(all_reduce(size, num_bytes), cluster)
    assert isinstance(found, AllReduce)
    assert found.algorithm == algorithm
    assert found.blocks == (BLOCKS if algorithm == "hierarchical" else ())
    assert choose(found, cluster) == found
    assert choose(found, None) == found


def test_blocks_follow_hosts_not_the_order_of_ranks():
    move = AllReduce((3, 0, 2, 1), 1 << 22, F32)
    assert choose(move, TWO_HOSTS).blocks == ((3, 2), (0, 1))


def test_an_exchange_never_sets_aside_more_than_a_mebibyte():
    cluster = SLOW_HOST
    fits, too_much = all_reduce(17, 1 << 16), all_reduce(18, 1 << 16)
    assert choose(fits, cluster).algorithm == "exchange"
    assert choose(too_much, cluster).algorithm == "direct"


def test_ranks_of_a_host_share_its_uplink():
    # The ring sends 1.5 n out of each host and 1 n each way is the hierarchy's; where
    # each rank has an uplink of its own, the hierarchy needs half of n there.
    num_bytes = 1 << 28
    ring = all_reduce(4, num_bytes)
    for cluster, ratio in ((TWO_HOSTS, 1.5), (FOUR_GROUPED, 3.0)):
        fast = replace(MEMORY, link_bytes_per_s=1e15)
        cluster = replace(cluster, links=(fast, NETWORK))
        uplink = num_bytes * 1.5 / NETWORK.link_bytes_per_s
        assert seconds(ring, cluster) == pytest.approx(uplink, rel=0.01)
        inside = seconds(hierarchical(num_bytes), cluster) - num_bytes / 2 / 4e9
        assert inside == pytest.approx(uplink / ratio, rel=0.01)


def test_the_formulas_on_one_host():
    a, r, n = MEMORY.latency_s, MEMORY.link_bytes_per_s, 1 << 16
    plain = all_reduce(4, n)
    local = n / 4e9  # per payload that waits in scratch memory
    for move, wanted in (
        (plain, 6 * a + 1.5 * n / r),
        (
            replace(plain, algorithm="direct"),
            2 * (a + 1e-5) + 1.5 * n / r + 0.75 * local,
        ),
        (replace(plain, algorithm="doubling"), 2 * (a + n / r + local)),
        (replace(plain, algorithm="exchange"), a + 1e-5 + 3 * (n / r + local)),
        (AllGather((0, 1, 2, 3), (n // 16,) * 4, F32), 3 * a + 0.75 * n / r),
        (BroadcastFrom((0, 1, 2, 3), 0, n // 4, F32), 2 * a + 2 * n / r),
        (AllReduce((2,), n // 4, F32), 0),
        (AllReduce((0, 1), 0, F32, algorithm="exchange"), 0),
    ):
        assert seconds(move, ONE_HOST) == pytest.approx(wanted), move


def test_scatters_are_direct_when_small_and_rings_when_large():
    for size, known in ((16, "direct"), (1 << 22, "ring")):
        counts = (size, size, size, size)
        found = choose(ReduceScatter((0, 1, 2, 3), counts, F32), ONE_HOST)
        assert found.algorithm == known
    gather = AllGather((0, 1, 2, 3), (16,) * 4, F32)
    assert choose(gather, ONE_HOST).algorithm == "direct"
    # Over an uplink a ring takes each part once, direct twice.
    assert choose(replace(gather, counts=(1 << 20,) * 4), TWO_HOSTS).chosen == "ring"


def test_what_has_one_algorithm_stays():
    for move in (
        AllToAll((0, 1), ((1, 2), (3, 4)), F32),
        BroadcastFrom((0, 1), 1, 5, F32),
        AllReduce((0,), 5, F32),
    ):
        assert choose(move, ONE_HOST) == move


def test_a_rank_outside_of_the_cluster_is_refused():
    with pytest.raises(ValueError, match="rank 9 is not one of the cluster's 8"):
        choose(AllReduce((0, 9), 4, F32), ONE_HOST)


@pytest.mark.parametrize(
    ("algorithm", "blocks"),
    [
        ("hierarchical", ()),
        ("hierarchical", ((0, 1, 2, 3),)),
        ("hierarchical", ((0,), (1,), (2,), (3,))),
        ("hierarchical", ((0, 1), (2, 4))),
        ("hierarchical", ((0, 1, 2), (3,))),
        ("hierarchical", ((0, 1), (1, 2))),
        ("ring", ((0, 1), (2, 3))),
    ],
)
def test_blocks_that_do_not_fit_are_refused(algorithm, blocks):
    with pytest.raises(ValueError, match="hierarchical"):
        AllReduce((0, 1, 2, 3), 4, F32, algorithm=algorithm, blocks=blocks)


@pytest.mark.parametrize(
    "move",
    [
        AllReduce((4, 1, 0, 3, 2), 7, F32, algorithm="doubling"),
        AllReduce((4, 1, 0, 3, 2), 7, F32, algorithm="exchange"),
        AllReduce((4, 1, 0, 3, 2), 7, F32, algorithm="direct"),
        AllReduce((4, 1, 0, 3, 2), 7, F32),
        hierarchical(28),
        AllGather((2, 0, 1), (3, 0, 5), F32, "ring"),
        ReduceScatter((2, 0, 1), (3, 0, 5), F32, algorithm="ring"),
    ],
)
def test_flows_are_what_the_ranks_send_and_receive(move: Move):
    for rank in move.group:
        flows = [flow for stage in stages(move) for flow in stage.flows]
        assert sum(n for src, _, n in flows if src == rank) == move.sent_bytes(rank)
        assert sum(n for _, dst, n in flows if dst == rank) == move.received_bytes(rank)
