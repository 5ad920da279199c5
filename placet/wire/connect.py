"""The wire of a worker: torch's process group, and the engine on its store.

    wire = connect()                                # in each rank, under torchrun
    ...
    disconnect(wire)

Moves of CPU tensors go by the engine. Where each rank has a GPU of its own, NCCL
carries them, and the engine tells it in which order (`ordered`), so both take moves in
any order. gloo stays for what is rare: it serves torch's checkpoints.
"""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from placet.errors import WireError, WireTimeout
from placet.placement.cluster import Cluster
from placet.settings import Worker, worker
from placet.torch_private.c10d import default_store
from placet.wire.c10d import C10dWire
from placet.wire.engine.connect import connect_engine
from placet.wire.interface import Wire
from placet.wire.ordered import OrderedWire
from placet.wire.torch_store import TorchStore


def connect(
    *,
    timeout_seconds: float = 300.0,
    cluster: Cluster | None = None,
    debug: bool = False,
    report_folder: Path | None = None,
) -> Wire:
    """Join the ranks that torchrun (or `placet train`) started; one call a process.

    Args:
        timeout_seconds: deadline of every move and of the start.
        cluster: the links between ranks, as `placet calibrate` measures them; moves
            choose their algorithms by it. Guessed if left out.
        debug: find misuse at some cost: buffers changed in flight (not on NCCL).
        report_folder: where flight records go when something fails.

    Raises:
        ValueError: torchrun's environment variables are missing, or the cluster is for
            another number of ranks.
        WireError: the port is in use.
        WireTimeout: not all ranks came.
    """
    here = worker()
    if here is None:
        raise ValueError(
            "connect() needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the "
            "environment; start the ranks with torchrun or `placet train -n`, or run "
            "alone with single()"
        )
    backend = _backend(here)
    _join(here, backend, timeout_seconds)
    engine = connect_engine(
        TorchStore(default_store(), "placet/engine"),
        here.rank,
        here.num_ranks,
        timeout_seconds=timeout_seconds,
        cluster=cluster,
        debug=debug,
        report_folder=report_folder,
        towards=here.master_address,
    )
    if "nccl" in backend:
        return OrderedWire(C10dWire(timeout_seconds=timeout_seconds), engine)
    return engine


def disconnect(wire: Wire) -> None:
    """Close a wire of `connect` and leave torch's process group."""
    try:
        wire.close()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(here: Worker, backend: str, timeout_seconds: float) -> None:
    place = f"{here.master_address}:{here.master_port}"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error):
            raise WireError(
                f"port in use: rank 0 cannot listen on {place}; set MASTER_PORT to a "
                "free port, or let torchrun choose one (torchrun --standalone)"
            ) from error
        raise WireTimeout(f"cannot reach rank 0 at {place}: {error}") from error
    except dist.DistStoreError as error:
        raise WireTimeout(
            f"not all {here.num_ranks} ranks came within {timeout_seconds:g} s: {error}"
        ) from error


def _backend(here: Worker) -> str:
    if not 0 < here.num_local_ranks <= torch.cuda.device_count():
        return "gloo"
    torch.cuda.set_device(here.local_rank)
    return "cpu:gloo,cuda:nccl"
