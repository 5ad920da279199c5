"""What was decided for a model, and how good that is; a `Plan` can do more with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from placet.cost.machine import Machine
from placet.cost.objective import Unit
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.storage import Storage
from placet.program.division import Division
from placet.program.graph import TensorMeta


@dataclass(frozen=True)
class MeshTried:
    """One factorisation of the ranks.

    Args:
        cost: of the best plan on it; None if it was left out, because its bound shows
            that it cannot win, or because nothing on it fits.
        bound: no plan on it costs less.
    """

    mesh: Mesh
    cost: float | None
    bound: float


@dataclass(frozen=True)
class Overlapped:
    """A step in which boxings run beside computing, as `placet.cost.overlap` predicts.

    Args:
        seconds: of the plan's step.
        bound_seconds: no plan's step is shorter, on any mesh that was tried.
    """

    seconds: float
    bound_seconds: float

    @property
    def gap(self) -> float:
        """How much longer the step can be than the shortest, relative to the bound."""
        return relative_gap(self.seconds, self.bound_seconds)


@dataclass(frozen=True)
class PlanData:
    """How a model's training step is divided over the ranks of a mesh.

    Args:
        division: signatures of operators, homes of states, boxings.
        unit: what the search had least of: bytes (mean received per rank and step), or
            seconds.
        cost, bound: of this plan, and of any plan on any mesh that was tried.
        is_complete: false if a time limit ended the search before its gap was reached.
        solver: which search found it.
        search_seconds: of capturing, building the problem, and solving.
        memory_limit_bytes: what each rank may hold; None for no limit.
        memory_bytes: what the fullest rank holds at its peak, as predicted.
        memory_at: the operator at which that is.
        memory_use: what for -> bytes, at the peak; see `placet.program.account`.
        fingerprint: of the captured model; a plan works for no other.
        states: shape and dtype of every parameter and buffer.
        batch: shape and dtype of each tensor of the batch it is for.
        storage: what the optimizer keeps, which is counted in the memory.
        torch_version: that captured the step.
        precision: that it was captured in.
        cluster: the links it was priced with; None if in bytes alone.
        machine: what a rank computes, which it was priced with; None likewise.
        overlapped: the step with boxings beside computing; None if in bytes alone.
        matmul_ratio: bytes that move around matrix products, over the least for each of
            them alone -> placet.planner.plan_facts; None in a step without any.
        meshes: the factorisations that were tried.
        notes: what the planner wants people to know.
        work: for people: (module, operator, its signatures) of the heavy operators of
            the forward, modules that are alike as one.
        moves: for people: (module, change of layout, number of boxings, mean bytes
            that a rank receives in a step), the largest first.
    """

    division: Division
    unit: Unit
    cost: float
    bound: float
    is_complete: bool
    solver: str
    search_seconds: Mapping[str, float]
    memory_limit_bytes: float | None
    memory_bytes: float
    fingerprint: str
    states: Mapping[str, TensorMeta]
    batch: tuple[TensorMeta, ...]
    storage: Storage
    torch_version: str
    precision: str = "fp32"
    cluster: Cluster | None = None
    machine: Machine | None = None
    overlapped: Overlapped | None = None
    matmul_ratio: float | None = None
    memory_at: str = ""
    memory_use: Mapping[str, float] = field(default_factory=dict)
    meshes: tuple[MeshTried, ...] = ()
    notes: tuple[str, ...] = ()
    work: tuple[tuple[str, str, str], ...] = ()
    moves: tuple[tuple[str, str, int, float], ...] = ()

    @property
    def mesh(self) -> Mesh:
        """The mesh that it is for."""
        return self.division.mesh

    @property
    def gap(self) -> float:
        """How much dearer it can be than the best plan, relative to the bound."""
        return relative_gap(self.cost, self.bound)


def relative_gap(cost: float, bound: float) -> float:
    """(cost - bound) / bound; 0 where they meet, and infinite above a bound of 0."""
    if cost <= bound * (1 + 1e-9):
        return 0.0
    return (cost - bound) / bound if bound > 0 else float("inf")
