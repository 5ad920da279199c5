"""What a plan is asked for, besides the model: checked before anything is traced."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from torch.optim import Optimizer

from placet.cost.machine import Machine, machine_here
from placet.cost.objective import (
    Objective,
    Unit,
    bytes_objective,
    seconds_objective,
)
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.meshes import meshes_of
from placet.planner.pins import Pin
from placet.planner.storage import Storage, storage_of
from placet.program.capture import Precision


@dataclass(frozen=True)
class Wanted:
    """What a plan is asked for, besides the model.

    Args:
        cluster: the links between the ranks.
        machine: how fast they compute; None where bytes alone count.
        memory_bytes: what each rank may hold.
        meshes: to be tried, in this order.
        gap: at which the search may end; None: see `placet.planner.search`.
    """

    unit: Unit
    cluster: Cluster
    machine: Machine | None
    memory_bytes: float | None
    meshes: tuple[Mesh, ...]
    pins: tuple[Pin, ...]
    storage: Storage
    precision: Precision
    time_limit_seconds: float
    gap: float | None

    @property
    def num_ranks(self) -> int:
        """That the plan is for."""
        return self.cluster.num_ranks

    def objective(self, mesh: Mesh) -> Objective:
        """The prices on a mesh."""
        if self.machine is None:
            return bytes_objective(mesh)
        return seconds_objective(mesh, self.cluster, self.machine)


def wanted_of(
    *,
    cluster: Cluster | None = None,
    memory: str | int | None = None,
    objective: Unit = "seconds",
    mesh: Mesh | None = None,
    max_axes: int = 2,
    pins: Sequence[Pin] = (),
    optimizer: str | Optimizer = "adam",
    precision: Precision = "fp32",
    machine: Machine | None = None,
    time_limit_seconds: float = 60.0,
    gap: float | None = None,
) -> Wanted:
    """What `placet.planner.planning.plan` was asked for.

    Raises:
        ValueError: an option that means nothing, or a mesh of another size than the
            cluster; says what was given, and what could be.
    """
    named = (("objective", objective, Unit), ("precision", precision, Precision))
    for name, value, kind in named:
        if value not in get_args(kind):
            known = " or ".join(map(repr, get_args(kind)))
            raise ValueError(f"{name}={value!r}: choose {known}")
    if not isinstance(mesh, Mesh | None):
        raise ValueError(f"mesh={mesh!r}: give a mesh, such as placet.Mesh('data=2')")
    if not isinstance(pins, Sequence) or not all(isinstance(p, Pin) for p in pins):
        raise ValueError(
            f"pins={pins!r}: give a list of pins, such as "
            "[placet.Pin('*.weight', home=placet.S(0))]"
        )
    if not isinstance(cluster, Cluster | None):
        raise ValueError(
            f"cluster={cluster!r}: give a cluster, such as placet.Cluster.here(4) or "
            "placet.Cluster.load('cluster.toml')"
        )
    _check_numbers(max_axes, time_limit_seconds, gap)
    memory_bytes = None if memory is None else parse_bytes(memory)
    storage = storage_of(optimizer)
    cluster = cluster or Cluster.here(None if mesh is None else mesh.num_ranks)
    if mesh is not None and mesh.num_ranks != cluster.num_ranks:
        raise ValueError(
            f"{mesh!r} has {mesh.num_ranks} ranks, the cluster has {cluster.num_ranks};"
            " give a mesh of as many"
        )
    meshes = (mesh,) if mesh else _meshes(cluster.num_ranks, max_axes, pins)
    if objective == "seconds" and machine is None:
        machine = machine_here()
    return Wanted(
        objective,
        cluster,
        machine if objective == "seconds" else None,
        memory_bytes,
        meshes,
        tuple(pins),
        storage,
        precision,
        time_limit_seconds,
        gap,
    )


def _meshes(num_ranks: int, max_axes: int, pins: Sequence[Pin]) -> tuple[Mesh, ...]:
    """All factorisations, or those that have the axes of all pins.

    Raises:
        ValueError: none has.
    """
    meshes = meshes_of(num_ranks, max_axes=max_axes)
    named = [pin for pin in pins if pin.axis is not None]
    found = tuple(m for m in meshes if all(pin.axis in m.axes for pin in named))
    if not found:
        known = ", ".join(dict.fromkeys(axis for m in meshes for axis in m.axes))
        raise ValueError(
            f"Pin({named[-1].pattern!r}, {named[-1].axis!r}): the meshes that are "
            f"tried have the axes {known}; give one of your own, such as "
            f"mesh=placet.Mesh('{named[-1].axis}={num_ranks}')"
        )
    return found


def _check_numbers(max_axes: int, time_limit_seconds: float, gap: float | None) -> None:
    if max_axes < 1:
        raise ValueError(f"max_axes={max_axes}: a mesh has at least 1 axis")
    if not time_limit_seconds > 0:
        raise ValueError(
            f"time_limit_seconds={time_limit_seconds}: give a time above 0"
        )
    if gap is not None and not 0 <= gap < 1:
        raise ValueError(
            f"gap={gap}: give a part of the bound, such as 0.01 for one percent; 0 for "
            "the best plan"
        )


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str | int) -> float:
    """A size in bytes: 8589934592, "8GiB" or "500 MB".

    Raises:
        ValueError: neither a number nor a number with a unit.
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", str(text))
    if found is None or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise ValueError(f"memory={text!r}: write a size such as '8GiB' or '500MB'")
    return float(found[1]) * _UNITS[found[2].upper()]
