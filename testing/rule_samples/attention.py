"""Sample calls: attention."""

from collections.abc import Iterator

import torch
from torch import Tensor

from testing.rule_samples.forms import Sample, T

aten = torch.ops.aten


def _both(
    query: T, key: T, mask: T | None = None, *, causal: bool = False
) -> Iterator[Sample]:
    """Forward and backward; the backward reads what the forward made."""
    kwargs = (("attn_mask", mask), ("scale", 0.5))
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    yield Sample(forward, (query, key, key, 0.0, causal), kwargs)

    def prepare(tensors: list[Tensor]) -> list[Tensor]:
        grad, q, k, v, _, _, *masks = tensors
        given = masks[0] if masks else None
        made = forward(q, k, v, 0.0, causal, attn_mask=given, scale=0.5)
        return [grad, q, k, v, *made, *masks]

    stats = T(*query.shape[:3])
    target = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    args = (query, query, key, key, query, stats, 0.0, causal)
    yield Sample(target, args, kwargs, prepare=prepare)


Q, K = T(3, 4, 6, 5), T(3, 4, 7, 5)

SAMPLES = (
    *_both(Q, K),
    *_both(Q, Q, causal=True),
    *_both(Q, K, T(3, 4, 6, 7)),
    *_both(Q, K, T(3, 1, 1, 7)),
    *_both(Q, K, T(1, 4, 6, 7)),
    *_both(Q, K, T(6, 7)),
    *_both(T(2, 6, 5, 4), T(2, 3, 5, 4)),
    *_both(T(2, 6, 5, 4), T(2, 2, 5, 4), causal=True),
)
