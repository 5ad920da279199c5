"""The nodes of a program: what may happen to placed tensors.

    Load      brings a batch          Compute   a callable, a graph, or one block
    Boxing    changes placements      Update    the optimizer
    Save      writes a checkpoint     Evaluate  computes metrics

Nodes are values. They name tensors and never hold them; what a name stands for on a
rank is bound by the executor (`placet.run.executor`).
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch

from placet.placement.layout import Layout, Shape


@dataclass(frozen=True)
class TensorSpec:
    """What is known of a named tensor before it exists: shape, dtype and layout."""

    shape: Shape
    dtype: torch.dtype
    layout: Layout

    @property
    def num_bytes(self) -> int:
        """Bytes of the global tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Load:
    """Brings a rank's part of the next batch."""

    name: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    lane: ClassVar[str] = "load"


@dataclass(frozen=True)
class Compute:
    """Computes on local parts; moves nothing.

    Args:
        early: outputs that are ready before the node ends, as gradients are in the
            middle of a block's backward; boxings of them need not wait for the end.
        accepts_partial: inputs may be `P` (the node is linear in them).
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    early: tuple[str, ...] = ()
    accepts_partial: bool = False
    lane: ClassVar[str] = "compute"


@dataclass(frozen=True)
class Boxing:
    """Changes the placement of some tensors, which travel in one payload.

    Args:
        name: also the key of its moves, together with the step.
        inputs, outputs: tensor i of `outputs` is tensor i of `inputs` in layout `dst`.
        src, dst: the layouts, the same for all of them.
        priority: larger goes first, on a wire that can.
        queue: boxings of one queue are submitted in program order on every rank, so
            that a wire that matches by order stays matched.
        times: how often a step fires it: once, or once a micro-batch.
        direct: the change is one step by one rule, as a planner has priced it; or else
            the cheapest path is looked for.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    src: Layout
    dst: Layout
    priority: int = 0
    queue: str = "grads"
    times: int = 1
    direct: bool = False
    lane: ClassVar[str] = "move"


@dataclass(frozen=True)
class Update:
    """The optimizer: new parameters from old ones and their gradients."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lane: ClassVar[str] = "update"


@dataclass(frozen=True)
class Save:
    """Writes parameters and optimizer state to a checkpoint."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    lane: ClassVar[str] = "save"


@dataclass(frozen=True)
class Evaluate:
    """Computes metrics over the validation set."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    lane: ClassVar[str] = "compute"


Node: TypeAlias = Load | Compute | Boxing | Update | Save | Evaluate
