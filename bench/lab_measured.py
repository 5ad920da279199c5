"""A wire in the lab, with what it runs on as measured: nothing is nominal.

links      timed between all pairs of hosts, as `placet calibrate --links` does
machine    on all ranks at once, as `placet calibrate --compute` does
"""

import torch.distributed as dist

from bench.wires import TIMEOUT_SECONDS
from placet.cost.machine import Machine, as_machine
from placet.cost.measure import measure
from placet.job.calibrate import measure_links
from placet.job.calibrate_compute import slowest
from placet.placement.cluster import Cluster
from placet.torch_private.c10d import default_store
from placet.wire.engine.connect import connect_engine
from placet.wire.interface import Wire
from placet.wire.torch_store import TorchStore


def open_measured(name: str, machine_seconds: float) -> tuple[Wire, Cluster, Machine]:
    """The engine between all ranks, its algorithms chosen for the links as they are.

    Args:
        name: of the bench; tells its keys in the store from others'.
        machine_seconds: how long each rank measures its machine.
    """
    plain = _engine(f"{name}/links", None)
    cluster = measure_links(plain).cluster
    machine = _machine(plain, machine_seconds)
    plain.close()
    return _engine(name, cluster), cluster, machine


def _engine(name: str, cluster: Cluster | None) -> Wire:
    return connect_engine(
        TorchStore(default_store(), f"bench/{name}"),
        dist.get_rank(),
        dist.get_world_size(),
        timeout_seconds=TIMEOUT_SECONDS,
        cluster=cluster,
    )


def _machine(wire: Wire, seconds: float) -> Machine:
    """The slowest rank's figures, all measured at once."""
    wire.exchange(b"", key="bench.begin")
    mine = as_machine(measure(seconds), wire.num_ranks)
    found = wire.exchange(mine.to_json().encode(), key="bench.machine")
    return slowest([Machine.from_json(bytes(text).decode()) for text in found])
