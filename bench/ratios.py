"""What two series of paired measurements say about each other.

    ratio     ours[i] / peer[i] of each pair; the median over the pairs  -> ratio
    interval  95%, by a bootstrap over blocks of neighbouring pairs      -> ratio
    verdict   whether the interval allows the target                     -> Row.verdict

Neighbouring pairs share the machine's mood (another process, a warm cache), so the
bootstrap draws blocks of pairs; with single pairs the interval would be too narrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Verdict: TypeAlias = Literal["met", "allowed", "missed", "too noisy", "shown"]

WIDEST = 0.15
"""An interval wider than this, relative to its ratio, decides nothing."""

_BLOCK_PAIRS = 10
_NUM_RESAMPLES = 4000


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 95% interval; for an exact figure all three are equal."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.value:.4f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Row:
    """One compared figure.

    Args:
        name: what is compared.
        unit: of `ours` and `peer`: "s", "bytes", ...
        ours, peer: the figures; medians where they were measured many times.
        ratio: ours over peer.
        most: the target, the ratio is to be at most this; None only shows the figure.
    """

    name: str
    unit: str
    ours: float
    peer: float
    ratio: Ratio
    most: float | None = None

    @property
    def verdict(self) -> Verdict:
        """How the target stands.

        met        the whole interval is at or below it
        allowed    the interval reaches below it: nothing says that it is missed
        missed     the whole interval is above it
        too noisy  allowed, but the interval is too wide to mean anything
        """
        if self.most is None:
            return "shown"
        if self.ratio.high <= self.most:
            return "met"
        if self.ratio.low > self.most:
            return "missed"
        wide = self.ratio.high - self.ratio.low > WIDEST * self.ratio.value
        return "too noisy" if wide else "allowed"

    @property
    def passes(self) -> bool:
        """Whether the target is met as far as the interval can say."""
        return self.verdict in ("met", "allowed", "shown")


def ratio(ours: Sequence[float], peer: Sequence[float], *, seed: int = 0) -> Ratio:
    """The median of the pairs' ratios and its 95% interval.

    Args:
        ours, peer: measured in pairs, > 0.
        seed: of the bootstrap.

    Raises:
        ValueError: the series differ in length, are empty, or hold values <= 0.
    """
    if len(ours) != len(peer) or not ours:
        raise ValueError(
            f"ratios need pairs: got {len(ours)} and {len(peer)} measurements"
        )
    if min(*ours, *peer) <= 0:
        raise ValueError(f"ratios need values > 0, got {min(*ours, *peer)}")
    ratios = np.asarray(ours, dtype=float) / np.asarray(peer, dtype=float)
    num_pairs = len(ratios)
    block = max(1, min(_BLOCK_PAIRS, num_pairs // 4))
    num_blocks = -(-num_pairs // block)
    starts = np.random.default_rng(seed).integers(
        num_pairs, size=(_NUM_RESAMPLES, num_blocks)
    )
    places = (starts[:, :, None] + np.arange(block)) % num_pairs  # circular blocks
    drawn = ratios[places.reshape(_NUM_RESAMPLES, -1)[:, :num_pairs]]
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    value = float(np.median(ratios))
    return Ratio(value, min(float(low), value), max(float(high), value))


def timed_row(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    unit: str = "s",
    most: float | None = None,
) -> Row:
    """A row from paired measurements."""
    return Row(
        name=name,
        unit=unit,
        ours=float(np.median(ours)),
        peer=float(np.median(peer)),
        ratio=ratio(ours, peer),
        most=most,
    )


def exact_row(
    name: str, ours: float, peer: float, *, unit: str, most: float | None = None
) -> Row:
    """A row from figures that have no noise, such as bytes.

    Raises:
        ValueError: the peer's figure is not > 0.
    """
    if peer <= 0:
        raise ValueError(f"{name}: the peer's figure must be > 0, got {peer}")
    value = ours / peer
    return Row(name, unit, ours, peer, Ratio(value, value, value), most)
