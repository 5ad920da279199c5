"""What torch's CPU kernels allocate for themselves while they run.

    convolution, float32        input or output, and weight, again in oneDNN's blocks
    its backward, float32       gradient or input, input and weight once more
    both, otherwise             the columns: each output element's window of the input
    batch norm's backward       the input once more
    attention's backward        one of its inputs, and a block of scores

Upper bounds of what torch 2.13 takes on x86 with oneDNN, measured by the allocator's
own record; kernels that take nothing of size are not here. Other devices have
workspaces of their own, which this does not know.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

aten = torch.ops.aten

Tensors: TypeAlias = Sequence[Tensor]
Workspace: TypeAlias = Callable[[Tensors, Tensors], int]

BIAS_BYTES = 32 << 10
"""Small things of a convolution."""
BLOCK_BYTES = 64 << 10
"""Blocks of scores that attention computes at a time."""


def workspace_bytes(target: Any, inputs: Tensors, outputs: Tensors) -> int:
    """The bytes that a call takes besides its inputs and outputs, at most.

    Args:
        inputs: the tensors among the arguments, in order.
        outputs: the tensors that it returns.
    """
    find = WORKSPACES.get(target)
    return 0 if find is None else find(inputs, outputs)


def _convolution(inputs: Tensors, outputs: Tensors) -> int:
    (x, weight), (made,) = inputs[:2], outputs
    if weight.dtype != torch.float32:
        return _columns_bytes(made, weight)
    if _is_product(x, weight, made):
        return 0
    return max(x.nbytes, made.nbytes) + weight.nbytes + BIAS_BYTES


def _convolution_backward(inputs: Tensors, outputs: Tensors) -> int:
    gradient, x, weight = inputs
    if weight.dtype != torch.float32:
        return _columns_bytes(gradient, weight)
    if _is_product(x, weight, gradient):
        return 0
    return max(gradient.nbytes, x.nbytes) + x.nbytes + weight.nbytes


def _is_product(x: Tensor, weight: Tensor, made: Tensor) -> bool:
    """Whether a convolution is one of matrices: a window of one, at every place."""
    return math.prod(weight.shape[2:]) == 1 and x.shape[2:] == made.shape[2:]


def _columns_bytes(made: Tensor, weight: Tensor) -> int:
    """Bytes of the windows that a convolution's outputs see; at least the output's."""
    windows = math.prod(weight.shape[2:]) * weight.shape[1]
    if windows == weight.shape[1]:
        return 0
    num_places = made.numel() // max(1, made.shape[1])
    return max(num_places * windows * made.itemsize, made.nbytes)


def _input(index: int, more: int = 0) -> Workspace:
    return lambda inputs, outputs: inputs[index].nbytes + more


WORKSPACES: Mapping[Any, Workspace] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_batch_norm_backward.default: _input(1),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (
        lambda inputs, outputs: BLOCK_BYTES
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _input(
        1, BLOCK_BYTES
    ),
}
