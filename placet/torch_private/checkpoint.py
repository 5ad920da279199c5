"""Private names of torch.distributed.checkpoint: save and load without its defaults.

The public `save` and `load` warn in a single process, and unpickle whatever `.metadata`
holds. These calls do neither.
"""

import pathlib
import pickle
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict
from torch.distributed.tensor import DTensor

METADATA_FILE = ".metadata"


def save_tensors(
    tensors: dict[str, Tensor], folder: Path, group: ProcessGroup | None
) -> None:
    """Write a flat dict of tensors; all ranks of `group` call it (None: one rank).

    Raises:
        RuntimeError: it failed on some rank; says which and why.
    """
    try:
        _save_state_dict(
            tensors,
            FileSystemWriter(folder, sync_files=True),
            process_group=group,
            no_dist=group is None,
            planner=DefaultSavePlanner(flatten_state_dict=False),
        )
    except CheckpointException as error:
        raise RuntimeError(_first_failure(error)) from error


def load_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """Fill a flat dict of tensors in place; each rank reads what it needs, alone.

    Raises:
        RuntimeError: some part could not be read.
    """
    try:
        _load_state_dict(
            tensors,
            FileSystemReader(folder),
            no_dist=True,
            planner=DefaultLoadPlanner(
                flatten_state_dict=False, flatten_sharded_tensors=False
            ),
        )
    except CheckpointException as error:
        raise RuntimeError(_first_failure(error)) from error


def _first_failure(error: CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    return f"rank {rank}: {type(cause).__name__}: {cause}"


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The global shapes that `.metadata` states, read without running its pickle.

    Raises:
        pickle.UnpicklingError: it holds anything but a checkpoint's own values.
        OSError, EOFError, and what a torn pickle raises.
    """
    with (folder / METADATA_FILE).open("rb") as file:
        metadata = _MetadataUnpickler(file).load()
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"holds a {type(metadata).__name__}")
    return {
        name: tuple(value.size)
        for name, value in metadata.state_dict_metadata.items()
        if isinstance(value, TensorStorageMetadata)
    }


_ALLOWED: dict[tuple[str, str], Any] = {
    (module.__name__, name): getattr(module, name)
    for module, names in (
        (
            dcp_metadata,
            "Metadata TensorStorageMetadata TensorProperties _MEM_FORMAT_ENCODING "
            "ChunkStorageMetadata MetadataIndex StorageMeta BytesStorageMetadata",
        ),
        (dcp_filesystem, "_StorageInfo"),
        (torch.serialization, "_get_layout"),
        (torch, "Size"),
        (pathlib, "PosixPath PurePosixPath"),
    )
    for name in names.split()
}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"names {module}.{name}, which is not allowed")
        return _ALLOWED[module, name]


def staged(tensor: Tensor) -> Tensor:
    """A copy in host memory that later changes of `tensor` do not touch."""
    if isinstance(tensor, DTensor):
        local = tensor.to_local().detach().to("cpu", copy=True)
        copy = DTensor(  # type: ignore[no-untyped-call]
            local, tensor._spec, requires_grad=False
        )
        return cast(Tensor, copy)
    return tensor.detach().to("cpu", copy=True)
