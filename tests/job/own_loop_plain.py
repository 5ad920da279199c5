"""A stranger's training loop in the manner of nanoGPT: micro-steps, clipping."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH_ROWS, NUM_POSITIONS, NUM_TOKENS = 6, 8, 11
NUM_STEPS, MICRO_STEPS, CLIP = 20, 3, 0.5


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, dim=-1)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return x + F.dropout(self.out(y.squeeze(1)), rate)


class TinyGPT(nn.Module):
    def __init__(self, width: int = 8, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, width)
        self.places = nn.Embedding(NUM_POSITIONS, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(depth))
        self.head = nn.Linear(width, NUM_TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def get_batch(step: int) -> tuple[Tensor, Tensor]:
    """Windows of a text that counts, with noise."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, NUM_TOKENS, (BATCH_ROWS, 1), generator=generator)
    noise = torch.rand(BATCH_ROWS, NUM_POSITIONS + 1, generator=generator) < 0.1
    text = (start + torch.arange(NUM_POSITIONS + 1) + noise) % NUM_TOKENS
    return text[:, :-1], text[:, 1:]


def get_lr(step: int) -> float:
    return 0.02 * (0.55 + 0.45 * math.cos(math.pi * step / NUM_STEPS))


@torch.no_grad()
def estimate_loss(model: nn.Module) -> float:
    model.eval()
    x, y = get_batch(10**6)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    model.train()
    return float(loss)


def train(model: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    validation = []
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        if step % 5 == 0:
            validation.append(estimate_loss(model))
        for micro_step in range(MICRO_STEPS):
            x, y = get_batch(step * MICRO_STEPS + micro_step)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / MICRO_STEPS).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    validation.append(estimate_loss(model))
    return validation
