"""Private names of torch.distributed, and those that it exports without saying so."""

from collections.abc import Sequence
from datetime import timedelta
from types import CodeType, FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    GradBucket,
    PrefixStore,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
    TCPStore,
    Work,
    _DistributedBackendOptions,
)
from torch.distributed import Backend, ProcessGroup
from torch.distributed.distributed_c10d import (
    GroupName,
    _get_default_group,
    _get_default_store,
    _new_process_group_helper,
    _world,
)

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BarrierOptions",
    "BroadcastOptions",
    "CreatorOptions",
    "GatherOptions",
    "GroupBase",
    "PrefixStore",
    "ReduceOp",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Store",
    "TCPStore",
    "Work",
    "bucket_index",
    "c10d_group",
    "configuration_of",
    "default_store",
    "fail_future",
    "fsdp_module_name",
    "group_of",
    "has_bucket",
    "is_fsdp_code",
    "reduction_of",
    "set_bytes",
]

GroupBase: Any = ProcessGroup
"""`ProcessGroup` to make subclasses of: its stubs' constructor and overloads are not
those that a subclass has."""

CreatorOptions = _DistributedBackendOptions
"""What torch tells the creator of a backend: store, ranks, timeout, name."""


def default_store() -> Store:
    """The store through which the ranks of the default process group met."""
    return _get_default_store()


def group_of(ranks: Sequence[int], name: str, timeout: timedelta) -> ProcessGroup:
    """A process group made by its members alone, in the order given.

    Blocks until all members have called it. `torch.distributed.new_group` with
    `use_local_synchronization` names a group after how many groups *this* rank has, so
    members with different histories never meet (torch 2.13, `_hash_ranks_to_str`).

    Args:
        ranks: ranks of the default group, this one among them.
        name: equal on all members, used once.
        timeout: the deadline of the group's collectives, and of making it.
    """
    world = _get_default_group()
    backend, store = _world.pg_map[world]
    group, _ = _new_process_group_helper(
        len(ranks),
        ranks.index(world.rank()),
        list(ranks),
        backend,
        store,
        GroupName(name),
        timeout=timeout,
    )
    _world.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
    return cast(ProcessGroup, group)


def set_bytes(store: Store, key: str, value: bytes) -> None:
    """Store any bytes; the stubs say str, which torch would encode as UTF-8."""
    store.set(key, cast(str, value))


def reduction_of(op: Any) -> tuple[str, float | torch.Tensor | None]:
    """The name of a reduction ("SUM", ...), and the factor of a PREMUL_SUM."""
    # A ReduceOp has no public field for its kind; its pickled state does.
    whole: Any = ReduceOp(op) if isinstance(op, ReduceOp.RedOpType) else op
    kind, factor = whole.__getstate__()
    return kind.name, factor


def c10d_group(
    backend: str, device: str, store: Store, rank: int, size: int, timeout: timedelta
) -> ProcessGroup:
    """A group of torch's own for one kind of device, unknown to torch.distributed.

    It has no name and is in no table, so nothing has to be destroyed but itself.

    Args:
        backend: "nccl" or "gloo".
        device: what it serves.
        store: the members meet there; theirs alone.
        rank, size: in the group.
        timeout: of its collectives.
    """
    group = ProcessGroup(store, rank, size)
    kind: Any = Backend.backend_type_map[backend]
    group._set_default_backend(kind)
    if backend == "nccl":  # absent from builds for CPUs
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        made: Any = dist.ProcessGroupNCCL(store, rank, size, options)
    else:
        made = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    group._register_backend(torch.device(device), kind, made)
    return group


class _Failure:
    """A failed future's value.

    C++ looks for tensors in a value by pickling it, and would crash when it finds none.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        raise self.error


def _raise(failure: _Failure) -> None:
    raise failure.error


def fail_future(future: "torch.futures.Future[Any]", error: Exception) -> None:
    """Complete a future with an error, for those who wait in Python and in C++.

    `Future.set_exception` is for Python only: DDP, which waits in C++, would crash.
    """
    future._set_unwrap_func(_raise)
    future.set_result(_Failure(error))


def configuration_of(group: ProcessGroup) -> str:
    """What `init_process_group` was asked for, as "cpu:placet,cuda:nccl"."""
    return _world.pg_backend_config.get(group, "")


def is_fsdp_code(code: CodeType) -> bool:
    """Whether a frame with this code may have a module's name: `fsdp_module_name`."""
    return code.co_filename.endswith("_fsdp_param_group.py") and (
        code.co_varnames[:1] == ("self",)
    )


def fsdp_module_name(frame: FrameType) -> str | None:
    """The name of the module whose parameters FSDP2 moves in this frame."""
    name = getattr(frame.f_locals["self"], "_module_fqn", None)
    return name if isinstance(name, str) else None


def has_bucket(code: CodeType) -> bool:
    """Whether a frame with this code may be a DDP communication hook."""
    return "bucket" in code.co_varnames[: code.co_argcount]


def bucket_index(frame: FrameType) -> int | None:
    """Which of DDP's buckets the communication hook in this frame got."""
    bucket = frame.f_locals.get("bucket")
    return bucket.index() if isinstance(bucket, GradBucket) else None
