"""Finds buffers that were changed or freed while the engine used them (debug mode).

Another thread, or an optimizer that was not told to wait, may write to a payload that
is still being sent: then ranks compute with different bytes. A checksum before and
after shows it. For the result, which the engine itself writes, there is torch's count
of writes; that is kept for a whole storage, so only a result that owns its storage is
checked.
"""

import ctypes
import zlib
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class BufferWatch:
    """How the buffers of a move looked when it was submitted.

    Args:
        payload, out: the buffers.
        payload_sum: checksum of the payload; None where the engine writes over it.
        out_version: torch's count of writes to `out`; None where others may write.
        storages: (start, bytes) of both storages.
    """

    payload: Tensor
    out: Tensor
    payload_sum: int | None
    out_version: int | None
    storages: tuple[tuple[int, int], tuple[int, int]]

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
        if self.payload_sum is not None and self.payload_sum != _sum(self.payload):
            return "the payload was changed in flight; wait first, or submit a copy"
        if self.out_version is not None and self.out_version != self.out._version:
            return "the out was written to in flight; wait for the move first"
        return ""


def watch(payload: Tensor, out: Tensor) -> BufferWatch:
    """Look at the buffers of a move that is about to be submitted."""
    storages = (_storage(payload), _storage(out))
    shared = storages[0][0] == storages[1][0]
    whole = out.untyped_storage().nbytes() == out.nbytes
    return BufferWatch(
        payload,
        out,
        None if shared else _sum(payload),
        out._version if whole and not shared else None,
        storages,
    )


def _storage(buffer: Tensor) -> tuple[int, int]:
    storage = buffer.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _sum(buffer: Tensor) -> int:
    # Not by numpy(): it would forbid ever to resize the storage, as FSDP2 does.
    memory = ctypes.c_char * buffer.nbytes
    return zlib.crc32(memory.from_address(buffer.data_ptr())) if buffer.numel() else 0
