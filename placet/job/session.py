"""The wire of this process: made once, from the worker's environment."""

from placet.settings import worker
from placet.wire.c10d import connect
from placet.wire.interface import Wire
from placet.wire.twin import single

_wires: list[Wire] = []


def current_wire() -> Wire:
    """This process's wire; alone (one rank) where it is no worker of a job."""
    if not _wires:
        _wires.append(single() if worker() is None else connect())
    return _wires[0]


def close() -> None:
    """Finish what is in flight and let go of the wire."""
    while _wires:
        _wires.pop().close()
