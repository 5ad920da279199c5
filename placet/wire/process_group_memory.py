"""Tensors of any layout as the flat contiguous elements that moves are of."""

from collections.abc import Sequence

import torch
from torch import Tensor


def flat(tensor: Tensor) -> Tensor:
    """The elements in a row: the tensor's own memory if it is contiguous."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous().view(-1)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of several tensors in a row."""
    if len(tensors) == 1:
        return flat(tensors[0])
    return torch.cat([flat(each) for each in tensors])


def write(target: Tensor, elements: Tensor) -> None:
    """Put elements in a row into a tensor of any layout."""
    if not shares_memory(elements, target):
        target.detach().copy_(elements.view(target.shape))


def shares_memory(elements: Tensor, target: Tensor) -> bool:
    """Whether elements in a row lie where the tensor does."""
    same = elements.data_ptr() == target.data_ptr() and target.is_contiguous()
    return same and not target.is_conj() and not target.is_neg()


def shares_storage(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors may overlap."""
    mine, theirs = one.untyped_storage(), other.untyped_storage()
    return mine.data_ptr() == theirs.data_ptr()


def apart(payload: Tensor, out: Tensor) -> Tensor:
    """The payload, copied if it may lie where the result goes."""
    return payload.clone() if shares_storage(payload, out) else payload
