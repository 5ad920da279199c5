"""The wires that benches compare, by name.

engine         placet's own engine, native core
engine-plain   the same with the core in Python
gloo           torch's collectives behind the same interface
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

import torch.distributed as dist

from placet.wire.c10d import C10dWire
from placet.wire.interface import Wire

WireKind: TypeAlias = Literal["engine", "engine-plain", "gloo"]
KINDS: tuple[WireKind, ...] = get_args(WireKind)
_ENGINE = "placet.wire.engine.connect"


def open_wire(kind: WireKind) -> Wire:
    """A wire between all ranks of torch.distributed's default group.

    Args:
        kind: which; see the module.

    Raises:
        ValueError: no such wire.
    """
    if kind == "gloo":
        return C10dWire()
    if kind not in KINDS:
        raise ValueError(f"no wire {kind!r}; there are {', '.join(KINDS)}")
    if find_spec(_ENGINE) is None:
        raise ValueError(f"wire {kind!r} is not built yet; use gloo")
    wire: Wire = import_module(_ENGINE).connect_engine(
        core="plain" if kind == "engine-plain" else "native"
    )
    return wire


def open_group(kind: WireKind) -> dist.ProcessGroup:
    """A process group of all ranks on such a wire, for programs of torch's own.

    Args:
        kind: which; see the module.
    """
    if kind == "gloo":
        return dist.new_group(backend="gloo")
    raise ValueError(f"no backend on wire {kind!r} yet; use gloo")
