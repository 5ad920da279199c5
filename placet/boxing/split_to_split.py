"""Split -> Split on another dim: a true all-to-all.

Each rank keeps the part of its slice that its new slice covers and receives the rest,
(num_ranks - 1) / num_ranks of a part where parts are even.

Source: OneFlow (arXiv:2110.15032), boxing costs; there summed over the ranks.
"""

from placet.boxing.intersection import lower, received_bytes
from placet.boxing.rule import Rule
from placet.placement.placement import Placement, Split


def applies(src: Placement, dst: Placement) -> bool:
    """Whether slices of one dim become slices of another."""
    return isinstance(src, Split) and isinstance(dst, Split)


RULE = Rule("split-to-split", applies, received_bytes, lower)
