"""Where parameters live, and what they hold besides their values."""

from dataclasses import dataclass

import torch

from placet.placement.layout import Layout
from placet.placement.placement import Broadcast, Split


@dataclass(frozen=True)
class Storage:
    """What a state holds during a whole step, in bytes per byte of its value.

    Args:
        gradient: of a parameter that trains.
        optimizer: of a parameter that trains (2 for Adam).
        whole: the optimizer needs whole tensors, so homes are B.
    """

    gradient: float = 1.0
    optimizer: float = 2.0
    whole: bool = False


def is_home(layout: Layout) -> bool:
    """Whether a tensor may live in a layout from step to step."""
    return all(
        isinstance(p, Broadcast) or (isinstance(p, Split) and p.halo == (0, 0))
        for p in layout.placements
    )


def storage_of(optimizer: str | torch.optim.Optimizer) -> Storage:
    """What an optimizer keeps for each byte of a parameter.

    Args:
        optimizer: "sgd", "momentum", "adam" and the like, or one that is made.

    Raises:
        ValueError: an unknown name.
    """
    name = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
    name = name.lower()
    if not isinstance(optimizer, str) and name == "sgd":
        momentum = any(group.get("momentum") for group in optimizer.param_groups)
        name = "momentum" if momentum else "sgd"
    if name not in _OPTIMIZER_BYTES:
        raise ValueError(
            f"optimizer={name!r}: how much it keeps is known for "
            f"{', '.join(_OPTIMIZER_BYTES)}"
        )
    return Storage(optimizer=_OPTIMIZER_BYTES[name])


_OPTIMIZER_BYTES = {
    "sgd": 0.0,
    "momentum": 1.0,
    "adagrad": 1.0,
    "rmsprop": 1.0,
    "adam": 2.0,
    "adamw": 2.0,
    "nadam": 2.0,
    "radam": 2.0,
    "adamax": 2.0,
    "adadelta": 2.0,
}
