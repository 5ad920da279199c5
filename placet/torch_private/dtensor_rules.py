"""DTensor's rules of operators: placements along one mesh axis, as text.

Only its single-dim strategies are read: lists of placements of outputs, then inputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import TensorMeta
from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder

from placet.torch_private.pytree import map_leaves

Kind = tuple[str, Any]
"""("split", dim), ("broadcast", None), ("partial", reduction) or ("other", None)."""


def find_strategies(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[list[Kind]], bool] | None:
    """DTensor's rule of an operator: ways, and whether parts may be uneven.

    Args:
        operator: an overload.
        args, kwargs: with meta tensors.

    Returns:
        None if it has no rule; a way is a placement per output, then per tensor input.
    """
    known = DTensor._op_dispatcher.sharding_propagator.op_single_dim_strategy_funcs
    info: Callable[..., Any] | None = known.get(operator)
    if info is None:
        return None
    given = map_leaves(_spec, list(args))
    named = {name: map_leaves(_spec, value) for name, value in kwargs.items()}
    ways = info(operator, tuple(given), named)
    uneven = bool(getattr(info, "allow_uneven_sharding", False))
    return [[_kind(p) for p in way] for way in ways], uneven


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorMeta(value.shape, value.stride(), value.dtype)
    return value


def _kind(placement: Any) -> Kind:
    if isinstance(placement, _ShardingPlaceholder) or type(placement) is Shard:
        return "split", placement.dim
    if placement is None or isinstance(placement, Replicate):
        return "broadcast", None
    if type(placement) is Partial:
        return "partial", placement.reduce_op
    return "other", None
