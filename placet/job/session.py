"""The wire of this process: made once, from the worker's environment."""

from placet.placement.cluster import Cluster
from placet.settings import run_dir, worker
from placet.wire.connect import connect, disconnect
from placet.wire.interface import Wire
from placet.wire.twin import single

_wires: list[Wire] = []
_clusters: list[Cluster] = []


def use_cluster(cluster: Cluster | None) -> None:
    """Let the wire choose algorithms by these links; before it is made."""
    _clusters[:] = [] if cluster is None else [cluster]


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
