"""A byte-level GPT on real text: the source of this machine's Python standard library.

    placet train char_gpt -n 2

The model is a plain module, written for one device. At the end its validation bits per
byte stand beside two baselines computed on the same bytes (recipes/byte_baselines.py).

Shape letters: B rows, T positions, D width, V = 256 byte values.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from placet.job.data import Data
from placet.job.events import Evaluated, Event, Finished, Result
from placet.job.job import Job
from placet.run.precision import Precision
from recipes.byte_baselines import lzma_bits_per_byte, order2_bits_per_byte
from recipes.stdlib_text import TextSplit, Windows, read_stdlib

NUM_BYTES = 256
WARMUP_SHARE = 0.05
LAST_LR_SHARE = 0.05
SAMPLE_PROMPT = b"import os\n\n\ndef "


class Attention(nn.Module):
    """Causal self-attention with rotary positions.

    Before attending, each position mixes in its two predecessors by a depthwise
    convolution: neighbouring bytes matter most, and attention is slow to find that out.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.neighbours = nn.Conv1d(width, width, 3, groups=width, padding=2)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        near = self.neighbours(x_BTD.transpose(1, 2))[..., :T].transpose(1, 2)
        qkv = self.qkv(x_BTD + near).view(B, T, 3 * self.num_heads, -1)
        q, k, v = qkv.transpose(1, 2).chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(
            rotated(q),
            rotated(k),
            v,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return out


class Block(nn.Module):
    """Attention and a multi-layer perceptron, each on a normalised copy (pre-norm)."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, num_heads, dropout)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.drop(self.attention(self.norm1(x_BTD)))
        hidden = F.gelu(self.up(self.norm2(x_BTD)))
        out: Tensor = x_BTD + self.drop(self.down(hidden))
        return out


class GPT(nn.Module):
    """Predicts each next byte from those before it; input and output weights are tied.

    Args:
        width: of the residual stream; a multiple of 2 * num_heads.
        depth: blocks.
        num_heads: attention heads.
        dropout: share of activations dropped in training.

    Shapes: bytes (B, T) -> logits (B, T, 256).
    """

    def __init__(
        self, *, width: int, depth: int, num_heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % (2 * num_heads):
            raise ValueError(
                f"width {width} does not divide into {num_heads} heads of even width; "
                f"take {2 * num_heads * max(1, round(width / (2 * num_heads)))}"
            )
        self.embed = nn.Embedding(NUM_BYTES, width)
        self.blocks = nn.ModuleList(
            Block(width, num_heads, dropout) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, NUM_BYTES, bias=False)
        self.head.weight = self.embed.weight
        self.apply(_initialise)
        for block in self.blocks:
            assert isinstance(block, Block)
            for last in (block.attention.out, block.down):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * depth))

    def forward(self, bytes_BT: Tensor) -> Tensor:
        # The tied weights are small, as an output layer needs; the input wants size 1.
        x_BTD = self.embed(bytes_BT) * math.sqrt(self.embed.embedding_dim)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits: Tensor = self.head(self.norm(x_BTD))
        return logits


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features by angles that grow with the position.

    Source: RoFormer (arXiv:2104.09864), section 3.2.2; pairs are (i, i + half).
    """
    num_positions, width = x.shape[-2:]
    steps = torch.arange(0, width, 2, device=x.device) / width
    positions = torch.arange(num_positions, device=x.device)
    angles = positions[:, None] * 10_000.0**-steps
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def loss(model: nn.Module, windows: Tensor) -> tuple[Tensor, int]:
    """Mean nats per byte of windows (B, T + 1), and how many bytes that is over."""
    logits, targets = model(windows[:, :-1]), windows[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), targets.numel()


def metrics(model: nn.Module, windows: Tensor) -> dict[str, tuple[Tensor, int]]:
    """The loss, and the same in bits per byte."""
    nats, count = loss(model, windows)
    return {"loss": (nats, count), "bits_per_byte": (nats / math.log(2), count)}


def optimizer_of(model: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    """AdamW that decays matrices only, not norms and biases."""
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.dim() == 2]
    others = [p for p in parameters if p.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=(0.9, 0.95))


def warm_up_then_cosine(optimizer: Optimizer, steps: int) -> LambdaLR:
    """The rate rises linearly over the first steps and falls along a half cosine."""
    warmup = max(1, round(WARMUP_SHARE * steps))

    def share(step: int) -> float:
        fallen = min(1.0, max(0, step - warmup) / max(1, steps - warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * fallen))
        rate = LAST_LR_SHARE + (1 - LAST_LR_SHARE) * cosine
        return min((step + 1) / warmup, rate)

    return LambdaLR(optimizer, share)


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: bytes,
    num_bytes: int,
    *,
    context: int,
    temperature: float = 0.8,
    seed: int = 0,
) -> str:
    """Text that the model continues a prompt with, prompt included."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    text = torch.tensor([list(prompt)], device=device)
    was_training = model.training
    model.eval()
    for _ in range(num_bytes):
        logits = model(text[:, -context:])[0, -1].float().cpu()
        chances = torch.softmax(logits / temperature, dim=-1)
        drawn = torch.multinomial(chances, 1, generator=generator)
        text = torch.cat((text, drawn.to(device)[None]), dim=1)
    model.train(was_training)
    return bytes(text[0].tolist()).decode("utf-8", errors="replace")


class FinalResult:
    """A callback: at the end, the model's bits per byte beside two baselines.

    Args:
        text: the split that the model was trained and validated on.
        context: bytes the model sees; also the length of a validation window.
        sample_bytes: how much text to generate; 0 for none.
    """

    def __init__(self, text: TextSplit, context: int, sample_bytes: int) -> None:
        self.text = text
        self.context = context
        self.sample_bytes = sample_bytes
        self.bits_per_byte: float | None = None

    def __call__(self, job: Any, event: Event) -> None:
        """Remember evaluations; report when the training is done."""
        if isinstance(event, Evaluated):
            self.bits_per_byte = event.metrics["bits_per_byte"]
        if not isinstance(event, Finished) or event.status != "done":
            return
        if self.bits_per_byte is None:
            return
        # On every rank, for parameters that are stored in parts meet at each use.
        sample = generate(
            job.model, SAMPLE_PROMPT, self.sample_bytes, context=self.context
        )
        if job.rank != 0:
            return
        targets = len(Windows(self.text.validation, self.context)) * self.context
        held_out = self.text.validation[: targets + 1]  # the bytes the model was given
        rows = (
            (f"{job.name} after {event.step:,} steps", self.bits_per_byte),
            (
                "order-2 byte model, same text",
                order2_bits_per_byte(self.text.train, held_out),
            ),
            ("lzma of the validation text alone", lzma_bits_per_byte(held_out)),
        )
        title = "Validation bits per byte (fewer is better)"
        job.emit(Result(title, rows, sample))


def char_gpt(
    *,
    width: int = 128,
    depth: int = 4,
    num_heads: int = 4,
    context: int = 128,
    batch_size: int = 8,
    steps: int = 2300,
    lr: float = 4e-3,
    weight_decay: float = 0.1,
    dropout: float = 0.0,
    clip_norm: float = 1.0,
    evaluate_every: int = 500,
    sample_bytes: int = 400,
    zero: Literal[0, 1, 2, 3] = 0,
    accumulate: int = 1,
    precision: Precision = "fp32",
    seed: int = 0,
) -> Job:
    """A byte-level GPT on the source of Python's standard library (4 minutes, 2 cores).

    Args:
        width: of the model.
        depth: blocks of the model.
        num_heads: attention heads.
        context: bytes that the model sees.
        batch_size: windows of a global batch.
        steps: training steps.
        lr: the highest learning rate, after warming up.
        weight_decay: of matrices.
        dropout: share of activations dropped in training.
        clip_norm: largest global norm of the gradients.
        evaluate_every: steps between validations.
        sample_bytes: bytes of text to generate at the end.
        zero: ZeRO level, 0 to 3.
        accumulate: micro-batches a step.
        precision: "fp32", "bf16" or "fp16".
        seed: keys initial values, data order and dropout.
    """
    torch.manual_seed(seed)
    text = read_stdlib()
    model = GPT(width=width, depth=depth, num_heads=num_heads, dropout=dropout)
    return Job(
        model,
        loss,
        optimizer_of(model, lr, weight_decay),
        Data(Windows(text.train, context), batch_size, drop_last=True),
        steps=steps,
        scheduler=lambda optimizer: warm_up_then_cosine(optimizer, steps),
        validation=Data(Windows(text.validation, context), 64, shuffle=False),
        evaluate_every=evaluate_every,
        metrics=metrics,
        callbacks=[FinalResult(text, context, sample_bytes)],
        clip_norm=clip_norm,
        zero=zero,
        accumulate=accumulate,
        precision=precision,
        seed=seed,
        name="char_gpt",
    )
