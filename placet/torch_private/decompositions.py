"""torch's decompositions of operators into others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree

__all__ = ["OpOverload", "decompose"]


def decompose(
    target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.fx.GraphModule | None:
    """What an operator does, in other operators; None if torch does not say.

    Args:
        args, kwargs: with meta tensors; each is a placeholder of the graph, in order.
    """
    known: Mapping[Any, Callable[..., Any]] = core_aten_decompositions()
    found = known.get(target) or decomposition_table.get(target)
    if found is None:
        return None
    leaves, structure = _pytree.tree_flatten((list(args), dict(kwargs)))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for i, tensor in zip(where, tensors, strict=True):
            filled[i] = tensor
        given, named = _pytree.tree_unflatten(filled, structure)
        return found(*given, **named)

    functional = torch.func.functionalize(call, remove="mutations_and_views")
    traced = make_fx(functional, decomposition_table=known)(*(leaves[i] for i in where))
    traced.graph.eliminate_dead_code()
    return traced
