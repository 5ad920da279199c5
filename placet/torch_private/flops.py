"""torch's formulas for floating point operations."""

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import flop_registry


def flop_formula(target: Any) -> Callable[..., int] | None:
    """The formula of an aten overload, called with its arguments and `out_val=`."""
    packet = getattr(target, "overloadpacket", None)
    return flop_registry.get(packet)
