"""placet trains a plain PyTorch model on the machines you have.

A job is a program of placed tensors; bytes move only at boxings, a change of placement.

    import placet

    job = placet.Job(model, loss, optimizer, data, steps=1000)
    job.fit()

The names below are imported when first used, so that `placet --help` need not wait for
torch.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from placet.job.checkpoint import Checkpoints
    from placet.job.data import Data
    from placet.job.job import Job
    from placet.job.large import Deferred
    from placet.job.launch import launch
    from placet.job.place import place
    from placet.placement.cluster import Cluster
    from placet.placement.layout import Layout
    from placet.placement.mesh import Mesh
    from placet.placement.placed import Placed
    from placet.placement.placement import B, P, S
    from placet.planner.pins import Pin
    from placet.planner.plan import Plan
    from placet.planner.planning import plan
    from placet.program.program import Program

__all__ = [
    "B",
    "Checkpoints",
    "Cluster",
    "Data",
    "Deferred",
    "Job",
    "Layout",
    "Mesh",
    "P",
    "Pin",
    "Placed",
    "Plan",
    "Program",
    "S",
    "launch",
    "place",
    "plan",
]

_HOMES = {
    "B": "placet.placement.placement",
    "Checkpoints": "placet.job.checkpoint",
    "Cluster": "placet.placement.cluster",
    "Data": "placet.job.data",
    "Deferred": "placet.job.large",
    "Job": "placet.job.job",
    "Layout": "placet.placement.layout",
    "Mesh": "placet.placement.mesh",
    "P": "placet.placement.placement",
    "Pin": "placet.planner.pins",
    "Placed": "placet.placement.placed",
    "Plan": "placet.planner.plan",
    "Program": "placet.program.program",
    "S": "placet.placement.placement",
    "launch": "placet.job.launch",
    "place": "placet.job.place",
    "plan": "placet.planner.planning",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'placet' has no attribute {name!r}")
    return getattr(_importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
