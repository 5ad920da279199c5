"""What a plan is to have least of: bytes, or seconds.

    bytes     mean bytes that a rank receives in a step, exactly as it runs; needs no
              machine, and is what tests and bounds are stated in
    seconds   latency and rate of the links, and a roofline for computing

Ties in bytes are broken by amounts far below one byte: fewer moves, then less work.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from placet.boxing.counts import largest_part
from placet.boxing.path import Step
from placet.cost.compute import compute_seconds, divided_share
from placet.cost.links import Links
from placet.cost.machine import Machine
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
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


@dataclass(frozen=True, eq=False)
class Seconds:
    """Seconds of a step, without overlap.

    Args:
        links: of the mesh, on a cluster.
        machine: what a rank computes.
    """

    links: Links
    machine: Machine
    unit: Unit = "seconds"

    def step_price(self, step: Step) -> float:
        """The links' time, and that of packing and unpacking on the fullest rank."""
        return self.links.step_seconds(step) + self.packing_seconds(step)

    def packing_seconds(self, step: Step) -> float:
        """What a boxing step computes: it reads its input, and writes its output."""
        change = step.change
        copied = sum(
            largest_part(shape, layout)
            for layout in (change.src, change.dst)
            for shape in change.shapes
        )
        moving = self.machine.memory_seconds(copied * change.dtype.itemsize)
        return moving + self.machine.boxing_seconds

    def node_cost(
        self, operator: Operator, signatures: tuple[Signature, ...], mesh: Mesh
    ) -> float:
        """The roofline of a rank's share."""
        return compute_seconds(operator, signatures, mesh.sizes, self.machine)


def seconds_objective(mesh: Mesh, cluster: Cluster, machine: Machine) -> Seconds:
    """Least time: links by the cluster's classes, computing by the machine's rates."""
    return Seconds(Links(mesh, cluster), machine)


def work_share(signatures: tuple[Signature, ...], mesh: Mesh) -> float:
    """The part of an operator's work that one rank does."""
    return divided_share(signatures, mesh.sizes)
