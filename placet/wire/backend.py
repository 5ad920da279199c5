"""Importing this registers the engine as torch.distributed's backend "placet".

    import torch.distributed as dist
    import placet.wire.backend

    dist.init_process_group("placet")                    # CPU tensors, by the engine
    dist.init_process_group("cpu:placet,cuda:nccl")      # and CUDA tensors, by NCCL

DDP, FSDP2, tensor parallel, DTensor, pipelining, functional collectives and
torch.distributed.checkpoint run on it as they are. Ranks may issue the collectives of a
group in different orders: see `placet.wire.process_group_keys` for what tells calls
apart, and for the one case in which nothing can.
"""

from placet.torch_private.c10d import Store
from placet.wire.engine.connect import connect_engine
from placet.wire.engine.wire import EngineWire
from placet.wire.process_group import Options
from placet.wire.process_group_backend import register
from placet.wire.torch_store import TorchStore


def _connect(
    store: Store, rank: int, num_ranks: int, seconds: float, options: Options
) -> EngineWire:
    return connect_engine(
        TorchStore(store, "placet/wire"),
        rank,
        num_ranks,
        timeout_seconds=seconds,
        debug=options.debug,
        report_folder=options.report_folder,
        can_reform=False,  # torch.distributed has no call for it
    )


register(_connect)
