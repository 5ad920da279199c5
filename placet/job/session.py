"""The wire of this process: made once, from the worker's environment."""

from placet.settings import run_dir, worker
from placet.wire.connect import connect, disconnect
from placet.wire.interface import Wire
from placet.wire.twin import single

_wires: list[Wire] = []


def current_wire() -> Wire:
    """This process's wire; alone (one rank) where it is no worker of a job."""
    if not _wires:
        alone = worker() is None
        _wires.append(single() if alone else connect(report_folder=run_dir()))
    return _wires[0]


def close() -> None:
    """Finish what is in flight and let go of the wire."""
    while _wires:
        disconnect(_wires.pop())
