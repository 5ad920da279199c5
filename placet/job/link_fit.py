"""What timed messages say about links: a line through them, and which hosts are near.

a message of n bytes takes   latency_s + n / link_bytes_per_s       -> fit
who talks to whom at once    each rank with one partner, in turn    -> rounds
groups of hosts              a gap between fast and slow pairs      -> host_groups
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median, quantiles

from placet.placement.cluster import LinkClass

Pair = tuple[int, int]

LARGE_BYTES = 1 << 18
"""The rate is that of messages from this size on; below it buffers hide the link."""

GAP = 1.6
"""Pairs of hosts fall into two classes where their rates have a gap of this factor."""


@dataclass(frozen=True)
class Timed:
    """How long messages of one size took, one after another, both ways at once."""

    num_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class LinkFit:
    """A line through timed messages.

    Args:
        latency_s, link_bytes_per_s: the line.
        spread: of the largest messages, the middle half's width over the median.
        misfit: how far the line is from the median of the largest two sizes, at most,
            relative.
    """

    latency_s: float
    link_bytes_per_s: float
    spread: float
    misfit: float

    def link(self, name: str) -> LinkClass:
        """The line as a link class."""
        return LinkClass(name, self.latency_s, self.link_bytes_per_s)


def fit(timed: Sequence[Timed]) -> LinkFit:
    """The line through the medians: the slope of the large, the height of the smallest.

    The slope is the median of those between any two large sizes, so one disturbed size
    does not bend it.

    Args:
        timed: at least two sizes >= LARGE_BYTES, all times > 0.

    Raises:
        ValueError: too few large sizes, or larger messages took no longer.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau
    (1968); differs in that the height is taken from the smallest size alone.
    """
    medians = {t.num_bytes: median(t.seconds) for t in timed}
    large = sorted(size for size in medians if size >= LARGE_BYTES)
    if len(large) < 2:
        raise ValueError(
            f"a line needs two message sizes of {LARGE_BYTES} bytes or more, got "
            f"{sorted(medians)}"
        )
    slopes = [(medians[b] - medians[a]) / (b - a) for a, b in combinations(large, 2)]
    seconds_per_byte = median(slopes)
    if seconds_per_byte <= 0:
        raise ValueError(
            f"messages of {large} bytes took {[medians[n] for n in large]} s: larger "
            "ones took no longer, the machine is too busy to measure on"
        )
    small = min(medians)
    latency_s = max(0.0, medians[small] - small * seconds_per_byte)
    last = next(t.seconds for t in timed if t.num_bytes == large[-1])
    low, _, high = quantiles(last, n=4) if len(last) > 1 else last * 3
    lines = {size: latency_s + size * seconds_per_byte for size in large}
    return LinkFit(
        latency_s=latency_s,
        link_bytes_per_s=1 / seconds_per_byte,
        spread=(high - low) / medians[large[-1]],
        misfit=max(abs(lines[n] / medians[n] - 1) for n in large[-2:]),
    )


def pooled(of_pairs: Sequence[Sequence[Timed]]) -> tuple[Timed, ...]:
    """The times of several pairs as if of one."""
    sizes = sorted({timed.num_bytes for pair in of_pairs for timed in pair})
    return tuple(
        Timed(
            size,
            tuple(
                seconds
                for pair in of_pairs
                for timed in pair
                if timed.num_bytes == size
                for seconds in timed.seconds
            ),
        )
        for size in sizes
    )


def rounds(hosts: Sequence[Sequence[int]]) -> tuple[tuple[Pair, ...], ...]:
    """Who exchanges messages with whom, all pairs of a round at once.

    The first round joins neighbours on each host; the others every host with every
    other one, rank by rank: one pair a rank, so that no link is measured under a load
    that no training step would put on it.

    Args:
        hosts: the ranks of each host.

    Returns:
        Pairs of ranks by round; rounds without pairs are left out.
    """
    within = tuple(
        (ranks[i], ranks[i + 1]) for ranks in hosts for i in range(0, len(ranks) - 1, 2)
    )
    found = [within]
    for pairs in tournament(len(hosts)):
        joined = (zip(hosts[a], hosts[b], strict=False) for a, b in pairs)
        found.append(tuple(pair for ranks in joined for pair in ranks))
    return tuple(pairs for pairs in found if pairs)


def tournament(num_players: int) -> tuple[tuple[Pair, ...], ...]:
    """Everyone against everyone else once, each at most once a round.

    Source: the circle method; one player stays, the others go round.
    """
    if num_players < 2:
        return ()
    places = list(range(num_players + num_players % 2))  # an odd one out meets nobody
    half = len(places) // 2
    found = []
    for _ in range(len(places) - 1):
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        met = ((min(pair), max(pair)) for pair in facing)
        found.append(tuple(sorted(pair for pair in met if pair[1] < num_players)))
        places = [places[0], places[-1], *places[1:-1]]
    return tuple(found)


def host_groups(rates: Mapping[Pair, float], num_hosts: int) -> tuple[int, ...]:
    """Which group each host belongs to: hosts are near each other, or far.

    Args:
        rates: bytes/s between any two hosts (a, b), a < b.
        num_hosts: how many there are.

    Returns:
        A group number per host; all 0 where no clear gap parts the rates, or where
        what is near does not fall into groups.
    """
    together = (0,) * num_hosts
    ordered = sorted(rates.values())
    steps = [(b / a, b) for a, b in pairwise(ordered)]
    widest, least_near = max(steps, default=(1.0, 0.0))
    if widest < GAP:
        return together
    near = {pair for pair, rate in rates.items() if rate >= least_near}
    groups = [
        min(
            other
            for other in range(num_hosts)
            if other == host or (min(host, other), max(host, other)) in near
        )
        for host in range(num_hosts)
    ]
    same = {pair for pair in rates if groups[pair[0]] == groups[pair[1]]}
    if same != near:
        return together
    firsts = sorted(set(groups))
    return tuple(firsts.index(group) for group in groups)
