"""What the jobs of this process share: the wire, made once, and a named plan."""

from placet.placement.cluster import Cluster
from placet.settings import run_dir, worker
from placet.wire.connect import connect, disconnect
from placet.wire.interface import Wire
from placet.wire.twin import single

_wires: list[Wire] = []
_clusters: list[Cluster] = []
_plans: list[str] = []


def use_cluster(cluster: Cluster | None) -> None:
    """Let the wire choose algorithms by these links; before it is made."""
    _clusters[:] = [] if cluster is None else [cluster]


def use_plan(plan: str | None) -> None:
    """Let jobs that are given no plan train by this one: a file's name, or "auto"."""
    _plans[:] = [] if plan is None else [plan]


def current_plan() -> str | None:
    """The plan that `use_plan` has named."""
    return _plans[0] if _plans else None


def current_wire() -> Wire:
    """This process's wire; alone (one rank) where it is no worker of a job."""
    if not _wires:
        if worker() is None:
            _wires.append(single())
        else:
            cluster = _clusters[0] if _clusters else None
            _wires.append(connect(cluster=cluster, report_folder=run_dir()))
    return _wires[0]


def close() -> None:
    """Finish what is in flight and let go of the wire."""
    while _wires:
        disconnect(_wires.pop())
