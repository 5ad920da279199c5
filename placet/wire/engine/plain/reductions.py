"""What a core computes on bytes: element-wise reductions of two operands."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
"""For bool, torch's sum is "or" and its product "and", as are max and min."""


def bytes_of(tensor: Tensor) -> Tensor:
    """The memory of a flat contiguous tensor, as a uint8 tensor that keeps it alive.

    Without what a tensor may have beside its memory: a gradient history, the mark of
    inference mode. Not by `Tensor.numpy`, after which torch never resizes the storage
    again, as FSDP2 must.
    """
    if not tensor.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    memory: Any = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    memory.owner = tensor
    return torch.frombuffer(memory, dtype=torch.uint8)


@cache
def dtype_of(name: str) -> torch.dtype:
    """The dtype that torch prints as `name`.

    Raises:
        ValueError: there is none.
    """
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype; needed e.g. 'torch.float32'")
    return dtype


@cache
def check_reduction(dtype_name: str, reduction: str) -> None:
    """Raise unless elements of the dtype can be reduced so.

    Raises:
        ValueError: torch has no such operation.
    """
    if reduction not in _OPERATIONS:
        known = ", ".join(_OPERATIONS)
        raise ValueError(f"cannot reduce by {reduction!r}; only by {known}")
    none = torch.empty(0, dtype=dtype_of(dtype_name))
    one = torch.zeros(1, dtype=torch.uint8).expand(none.element_size()).contiguous()
    value = one.view(none.dtype)
    try:
        _OPERATIONS[reduction](value, value, out=value)
    except (RuntimeError, TypeError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(
            f"cannot reduce {dtype_name} by {reduction}: {text}; carry it in another"
            " dtype"
        ) from None


def reduce_bytes(
    dst: Tensor, src: Tensor, other: Tensor, *, dtype: torch.dtype, reduction: str
) -> None:
    """dst = reduce(src, other), over the elements that uint8 tensors hold."""
    _OPERATIONS[reduction](src.view(dtype), other.view(dtype), out=dst.view(dtype))
