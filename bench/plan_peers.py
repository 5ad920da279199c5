"""What experts write by hand with torch, each as one training step on this rank.

    DDP             gradients all-reduced in buckets; also compiled by Inductor
    FSDP2           fully_shard of each layer and of the whole
    tensor parallel Megatron's columns and rows, vocabulary-parallel embedding and loss;
                    every rank has the whole batch

All take the same global batch, lose the same mean, and step plain SGD. Sources:
arXiv:2006.15704, arXiv:2304.11277, arXiv:1909.08053.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from placet.torch_private.pytree import map_leaves
from testing.models.example import Example
from testing.models.language import Gpt
from testing.models.vision import Vgg

Step: TypeAlias = Callable[[], float]
"""One training step; returns the mean loss over the global batch."""

LEARNING_RATE = 1e-3


def _ddp(example: Example, model: nn.Module, batch: Any) -> Step:
    return _data_parallel(example, DistributedDataParallel(model), batch)


def _ddp_compiled(example: Example, model: nn.Module, batch: Any) -> Step:
    wrapped = torch.compile(DistributedDataParallel(model))
    return _data_parallel(example, cast(nn.Module, wrapped), batch)


def _fsdp(example: Example, model: nn.Module, batch: Any) -> Step:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _data_parallel(example, model, batch)


def _layers(model: nn.Module) -> list[nn.Module]:
    """Modules that are gathered one after another."""
    if isinstance(model, Gpt):
        return list(model.layers)
    if isinstance(model, Vgg):
        return [model.features, *_linear(model.classifier)]
    return _linear(model)


def _linear(model: nn.Module) -> list[nn.Module]:
    return [child for child in model.children() if isinstance(child, nn.Linear)]


def _data_parallel(example: Example, model: nn.Module, batch: Any) -> Step:
    """Each rank's part of the batch; gradients are means over ranks."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    part = map_leaves(lambda leaf: leaf.chunk(num_ranks)[rank].clone(), batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = example.loss(model, part)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss)

    return step


def _tensor_parallel(example: Example, model: nn.Module, batch: Any) -> Step:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, dict(_styles(model)))
    is_gpt = isinstance(model, Gpt)
    if isinstance(model, Gpt):  # both are split by rows of the vocabulary
        model.head.weight = model.tokens.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> float:
        optimizer.zero_grad()
        with loss_parallel() if is_gpt else nullcontext():
            loss = example.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
        return float(whole)

    return step


def _styles(model: nn.Module) -> Mapping[str, ParallelStyle]:
    """Each linear layer's, by name."""
    if isinstance(model, Gpt):
        styles: dict[str, ParallelStyle] = {
            "tokens": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        for i in range(len(model.layers)):
            for name in ("query", "key", "value", "up"):
                styles[f"layers.{i}.{name}"] = ColwiseParallel()
            for name in ("out", "down"):
                styles[f"layers.{i}.{name}"] = RowwiseParallel()
        return styles
    prefix = "classifier." if isinstance(model, Vgg) else ""
    layers = model.classifier if isinstance(model, Vgg) else model
    found: dict[str, ParallelStyle] = {}
    names = [n for n, child in layers.named_children() if isinstance(child, nn.Linear)]
    for i, name in enumerate(names):
        if i % 2 == 1:
            found[prefix + name] = RowwiseParallel()
        elif i == len(names) - 1:  # no row-wise layer follows that would sum
            found[prefix + name] = ColwiseParallel(output_layouts=Replicate())
        else:
            found[prefix + name] = ColwiseParallel()
    return found


PEERS: Mapping[str, Callable[[Example, nn.Module, Any], Step]] = {
    "DDP": _ddp,
    "DDP compiled": _ddp_compiled,
    "FSDP2": _fsdp,
    "tensor parallel": _tensor_parallel,
}
