"""Models of text: GPT-2 and LLaMA, as their papers have them.

    B batch, T tokens of a sequence, D width of a token, V vocabulary

Sources: GPT-2 (Radford et al. 2019), GPT-3 (arXiv:2005.14165) table 2.1; LLaMA
(arXiv:2302.13971), grouped heads (arXiv:2305.13245).
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu


class Gpt(nn.Module):
    """A decoder with learned positions, whose head is its embedding.

    Args:
        width: of a token.
        num_layers, num_heads: of the decoder.
        vocabulary: how many tokens there are.
        length: the longest sequence.
    """

    def __init__(
        self,
        *,
        width: int,
        num_layers: int,
        num_heads: int,
        vocabulary: int = 50257,
        length: int = 1024,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            GptLayer(width, num_heads) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, V]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x)))


class GptLayer(nn.Module):
    """Causal attention, then a perceptron; norms before both.

    Args:
        width: of a token.
        num_heads: of the attention.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm_up = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        h = self.norm_attention(x)
        # Width of a head, not number of heads: on one rank's columns there are fewer.
        size = x.shape[-1] // self.num_heads
        q, k, v = (
            f(h).unflatten(-1, (-1, size)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        h = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.down(gelu(self.up(self.norm_up(x)))))


class Llama(nn.Module):
    """A decoder with rotary positions, RMS norms, gated layers and grouped heads.

    Args:
        width: of a token.
        inner: of the gated layer.
        num_layers, num_heads: of the decoder.
        num_groups: heads of keys and values; divides num_heads.
        vocabulary: how many tokens there are.
    """

    def __init__(
        self,
        *,
        width: int,
        inner: int,
        num_layers: int,
        num_heads: int,
        num_groups: int,
        vocabulary: int = 32000,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            LlamaLayer(width, inner, num_heads, num_groups) for _ in range(num_layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, V]."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x)))


class LlamaLayer(nn.Module):
    """Causal attention of grouped heads, then a gated layer; norms before both.

    Args:
        width, inner, num_heads, num_groups: as in Llama.
    """

    def __init__(self, width: int, inner: int, num_heads: int, num_groups: int) -> None:
        super().__init__()
        self.size = width // num_heads
        self.per_group = num_heads // num_groups
        self.norm_attention = nn.RMSNorm(width, eps=1e-5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, num_groups * self.size, bias=False)
        self.value = nn.Linear(width, num_groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_up = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        h = self.norm_attention(x)
        q, k, v = (
            f(h).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        k, v = (t.repeat_interleave(self.per_group, 1) for t in (rotated(k), v))
        h = scaled_dot_product_attention(rotated(q), k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        h = self.norm_up(x)
        return cast(Tensor, x + self.down(silu(self.gate(h)) * self.up(h)))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: pairs of numbers turned by an angle that grows with the place.

    Args:
        x: [B, heads, T, size].

    Source: RoFormer (arXiv:2104.09864), in halves rather than neighbours.
    """
    half = x.shape[-1] // 2
    ratios = torch.arange(half, dtype=x.dtype, device=x.device) / half
    places = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)
    angles = places[:, None] * 10000.0**-ratios
    cos, sin = angles.cos(), angles.sin()
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
