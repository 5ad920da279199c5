"""Finds buffers that were changed or freed while the engine used them (debug mode).

Another thread, or an optimizer that was not told to wait, may write to a payload that
is still being sent: then ranks compute with different bytes. A checksum before and
after shows it. For the result there is torch's count of writes; that is kept for a
whole storage, so only a result that owns its storage is checked. The engine itself
works on copies, so that a storage that is freed is an error and not a crash.
"""

import ctypes
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BufferWatch:
    """How the buffers of a move looked when it was submitted.

    Args:
        payload, out: the buffers.
        payload_sum: checksum of the payload.
        out_version: torch's count of writes to `out`; None where others may write.
        storages: (start, bytes) of both storages.
        given, taken: copies of both, for the engine.
    """

    payload: Tensor
    out: Tensor
    payload_sum: int
    out_version: int | None
    storages: tuple[tuple[int, int], tuple[int, int]]
    given: Tensor
    taken: Tensor

    def problem(self) -> str:
        """What happened to the buffers since; empty if nothing did."""
        for name, now, before in zip(
            ("payload", "out"),
            (_storage(self.payload), _storage(self.out)),
            self.storages,
            strict=True,
        ):
            if now != before:
                return (
                    f"the storage of the {name} was resized or freed in flight (from "
                    f"{before[1]} to {now[1]} bytes); wait for the move first"
                )
        if self.payload_sum != _sum(self.payload):
            return "the payload was changed in flight; wait first, or submit a copy"
        if self.out_version is not None and self.out_version != self.out._version:
            return "the out was written to in flight; wait for the move first"
        return ""

    def bring(self) -> None:
        """Write the result where it belongs, once there was no problem."""
        with torch.no_grad():
            self.out.copy_(self.taken)


def watch(payload: Tensor, out: Tensor) -> BufferWatch:
    """Look at the buffers of a move that is about to be submitted."""
    storages = (_storage(payload), _storage(out))
    shared = storages[0][0] == storages[1][0]
    whole = out.untyped_storage().nbytes() == out.nbytes
    return BufferWatch(
        payload,
        out,
        _sum(payload),
        out._version if whole and not shared else None,
        storages,
        payload.clone(),
        torch.empty_like(out),
    )


def _storage(buffer: Tensor) -> tuple[int, int]:
    storage = buffer.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _sum(buffer: Tensor) -> int:
    # Not by numpy(): it would forbid ever to resize the storage, as FSDP2 does.
    memory = ctypes.c_char * buffer.nbytes
    return zlib.crc32(memory.from_address(buffer.data_ptr())) if buffer.numel() else 0
