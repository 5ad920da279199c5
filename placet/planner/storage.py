"""Where parameters live, and what they hold besides their values."""

from dataclasses import dataclass

from torch.optim import Optimizer

from placet.placement.layout import Layout
from placet.placement.placement import Broadcast, Split
from placet.program.liveness import Kept


@dataclass(frozen=True)
class Storage:
    """What a state holds during a whole step, in bytes per byte of its value.

    Args:
        gradient: of a parameter that trains.
        optimizer: of a parameter that trains (2 for Adam).
        whole: the optimizer needs whole tensors, so homes are B.
        update: of the parameter that the optimizer steps on, for a moment.
        left: of the one before it, at that moment.
    """

    gradient: float = 1.0
    optimizer: float = 2.0
    whole: bool = False
    update: float = 2.0
    left: float = 1.0

    @property
    def kept(self) -> Kept:
        """The optimizer's part of it."""
        return Kept(self.optimizer, self.update, self.left)


def is_home(layout: Layout) -> bool:
    """Whether a tensor may live in a layout from step to step."""
    return all(
        isinstance(p, Broadcast) or (isinstance(p, Split) and p.halo == (0, 0))
        for p in layout.placements
    )


def storage_of(optimizer: str | Optimizer) -> Storage:
    """What an optimizer keeps for each byte of a parameter.

    Args:
        optimizer: "sgd", "momentum", "adam" and the like, with their usual options; or
            one that is made, whose options count.

    Raises:
        ValueError: an unknown name.
    """
    name = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
    name = name.lower()
    if name not in _KEEPS:
        raise ValueError(
            f"optimizer={name!r}: how much it keeps is known for {', '.join(_KEEPS)}"
        )
    state, update, left = _KEEPS[name]
    if isinstance(optimizer, Optimizer):
        state += sum(_is_set(optimizer, option) for option in _WITH_STATE)
        decoupled = name == "adamw" or _is_set(optimizer, "decoupled_weight_decay")
        update += _is_set(optimizer, "weight_decay") and not decoupled
    return Storage(optimizer=state, update=update, left=left)


def _is_set(optimizer: Optimizer, option: str) -> bool:
    return any(bool(group.get(option)) for group in optimizer.param_groups)


_WITH_STATE = ("momentum", "amsgrad", "centered")
"""Options each of which keeps another tensor of each parameter's size."""

_KEEPS = {
    "sgd": (0.0, 0.0, 0.0),
    "momentum": (1.0, 0.0, 0.0),
    "adagrad": (1.0, 1.0, 1.0),
    "rmsprop": (1.0, 1.0, 1.0),
    "adam": (2.0, 2.0, 1.0),
    "adamw": (2.0, 2.0, 1.0),
    "nadam": (2.0, 2.0, 1.0),
    "radam": (2.0, 2.0, 0.0),
    "adamax": (2.0, 1.0, 0.0),
    "adadelta": (2.0, 2.0, 1.0),
}
"""state, update, left: as torch 2.13 steps on one parameter after another, on a CPU.

Its `foreach` forms, which are usual on GPUs, hold the update of all parameters at once.
"""
