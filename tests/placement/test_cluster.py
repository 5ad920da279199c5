"""Clusters: hosts, links, and their TOML form."""

import pytest

from placet.placement.cluster import Cluster, Host, LinkClass, parse, render

MEMORY = LinkClass("memory", 2e-5, 4e9)
NETWORK = LinkClass("network", 1e-4, 1.25e9)
UPLINK = LinkClass("uplink", 1e-3, 1e8)
HOSTS = (
    Host("a", 2, 8 * 2**30, "memory", "left"),
    Host("b", 1, 4 * 2**30, "memory", "left"),
    Host("c", 2, 4 * 2**30, "memory", "right"),
)
CLUSTER = Cluster(HOSTS, (MEMORY, NETWORK, UPLINK), "network", "uplink")


def test_ranks_are_numbered_host_by_host():
    assert CLUSTER.num_ranks == 5
    assert [CLUSTER.host(rank).name for rank in range(5)] == ["a", "a", "b", "c", "c"]
    assert CLUSTER.memory_bytes(0) == 4 * 2**30
    assert CLUSTER.memory_bytes(2) == 4 * 2**30
    with pytest.raises(ValueError, match="rank 5 is not one of the cluster's 5"):
        CLUSTER.host(5)


def test_links_join_ranks_by_where_they_are():
    assert CLUSTER.link(0, 1) is MEMORY
    assert CLUSTER.link(1, 2) is NETWORK
    assert CLUSTER.link(3, 0) is UPLINK
    assert NETWORK.seconds(1.25e9) == pytest.approx(1.0001)


def test_file_says_the_same(tmp_path):
    path = tmp_path / "cluster.toml"
    CLUSTER.save(path)
    assert Cluster.load(path) == CLUSTER
    odd = Cluster((Host('q"\\', 1, 1, 'l"'),), (LinkClass('l"', 0.0, 1.0),))
    assert parse(render(odd)) == odd


def test_example_of_the_documentation_is_read():
    import placet.placement.cluster as module  # its own docstring is the file

    text = "\n".join(
        line[4:] for line in module.__doc__.splitlines() if line[:4] == "    "
    )
    cluster = parse(text)
    assert (cluster.num_ranks, cluster.link(0, 2).name) == (4, "network")


def test_here_is_this_machine():
    here = Cluster.here(num_ranks=3)
    assert here.num_ranks == 3
    assert here.memory_bytes(0) > 2**20
    assert here.link(0, 2) is here.links[0]
    assert Cluster.here().num_ranks >= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("links = {", "Unclosed|Invalid|Unterminated|Expected"),
        ("[links.x]\nlatency_s = 0\nlink_bytes_per_s = 1", r"lacks \['hosts'\]"),
        ("hosts = []\n[links]", "at least one host"),
        ("hosts = [{name = 'a'}]\n[links]", r"hosts\[0\] lacks"),
        ("hosts = []\nlink = 1\n[links]", "unknown keys"),
        ("hosts = []\n[links.x]\nlatency_s = 0\nlink_bytes_per_s = 0", "rate > 0"),
        ("hosts = []\n[[links]]\nname = 'x'", r"must be written as \[links.NAME\]"),
        ("[hosts]\n[links]", r"must be written as \[\[hosts\]\]"),
        (
            "hosts = []\n[links.x]\nlatency_s = '1ms'\nlink_bytes_per_s = 1",
            "links.x.latency_s must be written as a number, got '1ms'",
        ),
        (
            "hosts = []\n[links.x]\nlatency_s = 0\nlink_bytes_per_s = 1\n"
            "num_sockets = 0",
            "num_sockets=0; at least 1",
        ),
    ],
)
def test_file_that_is_no_cluster(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"bad.toml: .*({message})"):
        Cluster.load(path)


def test_cluster_refuses():
    with pytest.raises(ValueError, match="names the link 'x'"):
        Cluster((Host("a", 1, 1, "x"),), (MEMORY,))
    with pytest.raises(ValueError, match=r"between\.hosts names the link ''"):
        Cluster((Host("a", 1, 1, "memory"), Host("b", 1, 1, "memory")), (MEMORY,))
    apart = Host("a", 1, 1, "memory"), Host("b", 1, 1, "memory", "far")
    with pytest.raises(ValueError, match=r"between\.groups"):
        Cluster(apart, (MEMORY,))
    with pytest.raises(ValueError, match="host 'a' is there twice"):
        Cluster((Host("a", 1, 1, "memory"),) * 2, (MEMORY,))
    with pytest.raises(ValueError, match="must be at least 1"):
        Host("a", 0, 1, "memory")


@pytest.mark.parametrize(
    ("name", "num_hosts", "num_ranks"),
    [("lab", 4, 4), ("gpus16", 2, 16), ("nodes128x8", 128, 1024)],
)
def test_shipped_clusters_by_name(name: str, num_hosts: int, num_ranks: int):
    cluster = Cluster.load(name)
    assert (len(cluster.hosts), cluster.num_ranks) == (num_hosts, num_ranks)
    inside, between = cluster.hosts[0].link, cluster.between_hosts
    rates = {link.name: link.link_bytes_per_s for link in cluster.links}
    assert rates[inside] > rates[between] > 0
