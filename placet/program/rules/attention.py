"""Attention: batch, heads and, if it is not causal, queries may be split.

                       q     k     v     mask      -> out   logsumexp
batch                  S(0)  S(0)  S(0)  as it broadcasts -> S(0)
heads                  S(1)  S(1)  S(1)  as it broadcasts -> S(1)
queries                S(2)  B     B     as it broadcasts -> S(2)

The backward reads out, its gradient and logsumexp as they were made; the gradients of
keys and values are P(sum) where queries are split, that of a mask where it broadcasts.

Where several heads of queries share one of keys, both counts must be cut at the same
places. Nothing is split with dropout inside, whose numbers are not keyed by element.
States of random generators, and lengths of sequences, are whole on every rank.

    which results an operator has    -> RULES, by what they are like
    what an argument is, by name     -> ROLES

Source: Megatron-LM (arXiv:1909.08053), heads; DeepSpeed-Ulysses (arXiv:2309.14509).
"""

from collections.abc import Mapping
from typing import Any

import torch

from placet.placement.layout import Layout, Shape
from placet.placement.placement import B, P, Placement, S
from placet.program.rules.named import slots, value_of, with_values
from placet.program.rules.pattern import part_sizes, same_cuts, split_sizes
from placet.program.signature import Call, Operator, Parts, Rule, Signature

aten = torch.ops.aten

ROLES: Mapping[str, str] = {
    "query": "query",
    "key": "key",
    "value": "key",
    "out": "query",
    "grad_out": "query",
    "grad_out_": "query",
    "logsumexp": "stats",
    "attn_mask": "mask",
    "attn_bias": "mask",
}
"""Argument -> what it is like; others are whole."""

DIMS = ("batch", "heads", "queries")
"""The dims that may be split, in their order."""

ALIGNMENT = 32
"""One operator pads logsumexp to a multiple of this many queries."""


def _shape(operator: Operator, name: str) -> Shape:
    return operator.inputs[slots(operator)[name]].shape


def _full(operator: Operator) -> Shape:
    """(batch, heads, queries, keys), to which a mask broadcasts."""
    return (*_shape(operator, "query")[:3], _shape(operator, "key")[2])


def _has(operator: Operator, role: str, shape: Shape | None, dim: int) -> int | None:
    """Where a tensor of this role has a dim; None if it is the same all along it."""
    if role == "":
        return None
    if role == "key":
        return dim if dim < 2 else None
    if role != "mask":
        return dim
    assert shape is not None
    at = dim - (4 - len(shape))
    return at if at >= 0 and shape[at] == _full(operator)[dim] else None


def _may_split(operator: Operator, dim: int) -> bool:
    query, key = _shape(operator, "query"), _shape(operator, "key")
    if query[dim] < 2 or value_of(operator, "dropout_p", 0.0):
        return False
    match DIMS[dim]:
        case "batch":
            return query[0] == key[0]
        case "heads":
            return key[1] == _shape(operator, "value")[1] and query[1] % key[1] == 0
        case _:
            return not value_of(operator, "is_causal", False) and all(
                shape[2] == query[2] for shape in _stats(operator)
            )


def _stats(operator: Operator) -> list[Shape]:
    """The shapes of logsumexp, among inputs and outputs."""
    given = slots(operator)
    found = [operator.inputs[given[n]] for n in ("logsumexp",) if n in given]
    if "logsumexp" not in given and len(operator.outputs) > 1:
        made = operator.outputs[1]
        found += [] if made is None else [made]
    return [meta.shape for meta in found]


def _signature(operator: Operator, roles: tuple[str, ...], dim: int) -> Signature:
    names = {index: name for name, index in slots(operator).items()}
    inputs = []
    for index, meta in enumerate(operator.inputs):
        at = _has(operator, ROLES.get(names[index], ""), meta.shape, dim)
        inputs.append(B if at is None else S(at))
    outputs: list[Placement] = []
    for role, made in zip(roles, operator.outputs, strict=True):
        shape = None if made is None else made.shape
        at = (
            None
            if role == "mask" and shape is None
            else _has(operator, role, shape, dim)
        )
        missing = B if role == "" else P()
        outputs.append(missing if at is None else S(at))
    return Signature(tuple(inputs), tuple(outputs))


def _fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    """Groups of heads stay whole; so do blocks of logsumexp, where it has such."""
    del outputs
    query, key = _shape(operator, "query"), _shape(operator, "key")
    layout = inputs[slots(operator)["query"]]
    shared = query[1] // key[1]
    if shared > 1 and not same_cuts(
        (query[1], 1), (key[1], shared), split_sizes(layout, 1)
    ):
        return False
    cuts = split_sizes(layout, 2)
    blocks = "efficient" in str(operator.target) and cuts
    return not blocks or all(n % ALIGNMENT == 0 for n in part_sizes(query[2], cuts))


def _local(operator: Operator, parts: Parts) -> Call:
    """The same on the parts; some are told how many queries there are."""
    box = parts.input_box(operator, slots(operator)["query"])
    return with_values(operator, max_q=box[2][1] - box[2][0])


def _rule(*roles: str) -> Rule:
    """A rule for an operator with outputs like these; "" for what is whole."""

    def signatures(operator: Operator) -> list[Signature]:
        if len(_shape(operator, "query")) != 4:
            return []
        return [
            _signature(operator, roles, dim)
            for dim in range(len(DIMS))
            if _may_split(operator, dim)
        ]

    return Rule(signatures, _local, _fits)


FORWARD = ("query", "stats")
BACKWARD = ("query", "key", "key")

RULES: Mapping[Any, Rule] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _rule(*FORWARD),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _rule(*BACKWARD),
    aten._scaled_dot_product_flash_attention.default: _rule(*FORWARD, *[""] * 7),
    aten._scaled_dot_product_flash_attention_backward.default: _rule(*BACKWARD),
    aten._scaled_dot_product_efficient_attention.default: _rule(*FORWARD, "", ""),
    aten._scaled_dot_product_efficient_attention_backward.default: _rule(
        *BACKWARD, "mask"
    ),
    aten._scaled_dot_product_cudnn_attention.default: _rule(*FORWARD, *[""] * 7),
    aten._scaled_dot_product_cudnn_attention_backward.default: _rule(*BACKWARD),
    aten._scaled_dot_product_fused_attention_overrideable.default: _rule(
        *FORWARD, *[""] * 7
    ),
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _rule(
        *BACKWARD, "mask"
    ),
}
