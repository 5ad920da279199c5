"""What a plan is to have least of: bytes, or seconds.

    bytes     mean bytes that a rank receives in a step, exactly as it runs; needs no
              machine, and is what tests and bounds are stated in
    seconds   latency and rate of the links, and a roofline for computing

Ties in bytes are broken by amounts far below one byte: fewer moves, then less work.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from placet.boxing.path import Step
from placet.placement.mesh import Mesh
from placet.placement.placement import Split
from placet.program.signature import Operator, Signature

Unit = Literal["bytes", "seconds"]

MOVE_BYTES, STEP_BYTES = 2e-3, 1e-3
"""What a move, and any step, counts as."""

WORK_BYTES = 1e-4
"""What an operator counts as whose work no axis divides."""


class Objective(Protocol):
    """Prices of steps and operators."""

    @property
    def unit(self) -> Unit:
        """What the prices are in."""
        ...

    def step_price(self, step: Step) -> float:
        """What one boxing step costs."""
        ...

    def node_cost(
        self, operator: Operator, signatures: tuple[Signature, ...], mesh: Mesh
    ) -> float:
        """What an operator costs, divided by a signature for each axis."""
        ...


@dataclass(frozen=True)
class Bytes:
    """Mean bytes received per rank and step.

    Args:
        num_ranks: of the mesh.
    """

    num_ranks: int
    unit: Unit = "bytes"

    def step_price(self, step: Step) -> float:
        """Mean bytes that a rank receives in a boxing step."""
        received = step.rule.received_bytes(step.change)
        return received / self.num_ranks + STEP_BYTES + (MOVE_BYTES if received else 0)

    def node_cost(
        self, operator: Operator, signatures: tuple[Signature, ...], mesh: Mesh
    ) -> float:
        """A tie-breaker: less where more axes divide the work."""
        del operator
        return WORK_BYTES * work_share(signatures, mesh)


def bytes_objective(mesh: Mesh) -> Bytes:
    """Least bytes."""
    return Bytes(mesh.num_ranks)


def work_share(signatures: tuple[Signature, ...], mesh: Mesh) -> float:
    """The part of an operator's work that one rank does."""
    share = 1.0
    for size, signature in zip(mesh.sizes, signatures, strict=True):
        if is_divided(signature):
            share /= size
    return share


def is_divided(signature: Signature) -> bool:
    """Whether the ranks of the axis share the operator's work."""
    placements = (*signature.inputs, *signature.outputs)
    return any(isinstance(p, Split) for p in placements)
