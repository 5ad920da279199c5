"""Sample calls of operators that only GPUs have, and what they compute, for CPUs.

    scores = scale q k^T + bias
    out = softmax(scores) v,  logsumexp = log sum exp(scores)

On a CPU the formulas stand in for the kernels (`formula`), so that the rules for parts
are checked everywhere; on a GPU the kernels themselves run (`tests.program.rules`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from testing.rule_samples.forms import Sample, T

aten = torch.ops.aten

FLASH = aten._scaled_dot_product_flash_attention.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default
OVERRIDEABLE = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD: dict[Any, Any] = {
    target: getattr(aten, f"{target.overloadpacket.__name__}_backward").default
    for target in (FLASH, EFFICIENT, CUDNN, OVERRIDEABLE)
}
RMS_BACKWARD = aten._fused_rms_norm_backward.default
NOWHERE = {OVERRIDEABLE, BACKWARD[OVERRIDEABLE]}
"""Operators that are for other accelerators; no kernel of torch's own has them."""

SCALE = 0.5
ALIGNMENT = 32
"""One operator pads logsumexp to a multiple of this many queries."""


def kernel(target: Any) -> Callable[..., Any]:
    """An operator, where there is a GPU for it; or else its formula."""

    def call(*args: Any, **kwargs: Any) -> Any:
        on_gpu = any(isinstance(x, Tensor) and x.is_cuda for x in args)
        return target(*args, **kwargs) if on_gpu else formula(target, *args, **kwargs)

    return call


def formula(target: Any, *args: Any, **kwargs: Any) -> Any:
    """What an operator computes, by its definition."""
    names = [argument.name for argument in target._schema.arguments]
    given = {a.name: a.default_value for a in target._schema.arguments}
    given |= dict(zip(names, args, strict=False)) | kwargs
    if target is RMS_BACKWARD:
        return _rms_norm_backward(given)
    if target in BACKWARD:
        return _forward(target, given)
    if target in BACKWARD.values():
        return _backward(target, given)
    return target(*args, **kwargs)


def _attend(given: dict[str, Any], *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of q, k, v and, if there is one, a bias."""
    q, k, v, *bias = tensors
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = q @ k.transpose(-1, -2) * given["scale"]
    scores = scores + bias[0] if bias else scores
    if given["is_causal"]:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _forward(target: Any, given: dict[str, Any]) -> list[Any]:
    q, k, v = given["query"], given["key"], given["value"]
    bias = given.get("attn_bias")
    out, stats = _attend(given, q, k, v, *([] if bias is None else [bias]))
    if target is EFFICIENT:
        stats = F.pad(stats, (0, -stats.shape[2] % ALIGNMENT))
    rest = [
        torch.zeros(2, dtype=torch.int64) if "Tensor" in str(returned.type) else 0
        for returned in target._schema.returns[2:]
    ]
    return [out, stats, *rest]


def _backward(target: Any, given: dict[str, Any]) -> tuple[Any, ...]:
    grad = given.get("grad_out", given.get("grad_out_"))
    bias, mask = given.get("attn_bias"), given.get("grad_input_mask")
    biases = [] if bias is None else [bias]
    lengths = given.get("max_q"), given.get("max_k")
    sizes = given["query"].shape[2], given["key"].shape[2]
    assert lengths in ((None, None), sizes), f"told {lengths}, has {sizes}"
    tensors = [given["query"], given["key"], given["value"], *biases]
    num_wanted = 4 if mask is not None and mask[3] else 3
    leaves = [x.detach().requires_grad_() for x in tensors]
    with torch.enable_grad():
        out, _ = _attend(given, *leaves)
        found = torch.autograd.grad(out, leaves[:num_wanted], grad)
    missing = (None,) if mask is not None and not mask[3] else ()
    return (*found, *missing)


def _rms_norm_backward(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    x = given["input"].detach().requires_grad_()
    weight = given["weight"].detach().requires_grad_()
    dims = tuple(range(-len(given["normalized_shape"]), 0))
    with torch.enable_grad():
        scale = (x.detach().square().mean(dims, keepdim=True)).rsqrt()
        assert torch.allclose(given["rstd"], scale, atol=1e-3), "another rstd"
        made = x * (x.square().mean(dims, keepdim=True)).rsqrt() * weight
        grad_x, grad_weight = torch.autograd.grad(made, (x, weight), given["grad_out"])
    return grad_x, grad_weight


def _attention(
    target: Any, dtype: torch.dtype, query: T, key: T, bias: T | None, *, causal: bool
) -> Iterator[Sample]:
    """Forward and backward; the backward reads what the forward made."""
    has_bias = target is not FLASH
    named: dict[str, Any] = {"dropout_p": 0.0, "is_causal": causal}
    named |= {"attn_bias": bias} if has_bias else {}
    named |= {"compute_log_sumexp": True} if target in (EFFICIENT, CUDNN) else {}
    args = _ordered(target, {"query": query, "key": key, "value": key, **named})
    scale = (("scale", SCALE),)
    yield Sample(target, args, scale)

    def prepare(tensors: list[Tensor]) -> list[Tensor]:
        """In the order of the backward's tensors: see `_ordered`."""
        order = [n for n in names if n in made_by or n in given_by]
        values = dict(zip(order, tensors, strict=True))
        q, k, v = values["query"], values["key"], values["value"]
        mine = {"query": q, "key": k, "value": v, **named}
        if has_bias and bias is not None:
            mine["attn_bias"] = values["attn_bias"]
        made = kernel(target)(*_ordered(target, mine), scale=SCALE)
        values |= {n: made[place] for n, place in made_by.items()}
        return [values[n] for n in order]

    backward = BACKWARD[target]
    names = [a.name for a in backward._schema.arguments if not a.kwarg_only]
    made_by = _made_by(target, names)
    given_by = {n: query for n in names if n.startswith("grad_out")}
    given_by |= {"query": query, "key": key, "value": key}
    given_by |= {"attn_bias": bias} if has_bias and bias is not None else {}
    stats = T(*query.shape[:3], dtype=torch.float32)
    shapes = {"out": query, "logsumexp": stats}
    seeds = {n: shapes.get(n, T(2, dtype=torch.int64)) for n in made_by}
    lengths = {"max_q": query.shape[2], "max_k": key.shape[2]}
    others = {"grad_input_mask": (True, True, True, bias is not None)}
    values = {**given_by, **seeds, **lengths, **others, **named}
    yield Sample(backward, _ordered(backward, values), scale, prepare=prepare)


def _ordered(target: Any, values: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments by position; those that have no value and no default are None."""
    arguments = [a for a in target._schema.arguments if not a.kwarg_only]
    return tuple(values.get(a.name, a.default_value) for a in arguments)


def _made_by(target: Any, names: list[str]) -> dict[str, int]:
    """Arguments of a backward -> which of the forward's results they are."""
    made = {r.name: i for i, r in enumerate(target._schema.returns)}
    made |= {"out": 0, "logsumexp": 1}
    if target is FLASH:
        made |= {"philox_seed": 6, "philox_offset": 7}
    kept = ("out", "logsumexp", "philox_seed", "philox_offset")
    return {n: made[n] for n in names if n in kept}


def samples(dtype: torch.dtype, stats: torch.dtype) -> Iterator[Sample]:
    """All sample calls.

    Args:
        dtype: of queries, keys and values; efficient attention has masks of it.
        stats: of what a norm keeps.
    """
    q, k = T(3, 4, 64, 16, dtype=dtype), T(3, 4, 96, 16, dtype=dtype)
    few = T(2, 2, 64, 16, dtype=dtype)
    for target in BACKWARD:
        yield from _attention(target, dtype, q, q, None, causal=True)
        yield from _attention(target, dtype, q, k, None, causal=False)
        many = T(2, 4, 64, 16, dtype=dtype)
        if target in (FLASH, CUDNN):
            yield from _attention(target, dtype, many, few, None, causal=False)
    for shape in ((3, 4, 64, 96), (1, 1, 64, 96)):
        bias = T(*shape, dtype=dtype)
        yield from _attention(EFFICIENT, dtype, q, k, bias, causal=False)
    x, weight = T(3, 5, 6, dtype=dtype), T(6, dtype=dtype)

    def rstd(tensors: list[Tensor]) -> list[Tensor]:
        grad, x, _, weight = tensors
        wide = x.to(stats)
        return [grad, x, wide.square().mean(-1, keepdim=True).rsqrt(), weight]

    kept = T(3, 5, 1, dtype=stats)
    args = (x, x, (6,), kept, weight, (True, True))
    yield Sample(RMS_BACKWARD, args, prepare=rstd)
