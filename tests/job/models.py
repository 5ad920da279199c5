"""Small models with everything that a job must get right, in float64."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

NUM_CLASSES = 5
MASKED = -100


class Block(nn.Module):
    """A residual block of uneven widths, with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 7)
        self.down = nn.Linear(7, width, bias=False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(self.norm(x)))
        return x + F.dropout(self.down(hidden), self.dropout, self.training)


class Everything(nn.Module):
    """Blocks, ties in the root and between blocks, frozen and unused parameters, 0-d.

    Args:
        recompute: run the blocks under activation checkpointing.
    """

    def __init__(self, dropout: float = 0.2, recompute: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(NUM_CLASSES, 10, bias=False)
        self.blocks = nn.ModuleList(Block(10, dropout) for _ in range(3))
        self.blocks[2].down.weight = self.blocks[0].down.weight
        self.head = nn.Linear(10, NUM_CLASSES, bias=False)
        self.tail = nn.Linear(NUM_CLASSES, NUM_CLASSES)
        self.tail_again = self.tail
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.one = nn.Parameter(torch.ones(1))
        self.unused = nn.Linear(3, 2)
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        logits = self.head(x) * self.scale + self.frozen
        out: Tensor = self.tail_again(self.tail(logits + self.one * logits.tanh()))
        return out


class Matrices(nn.Module):
    """2-d parameters only, as Muon wants them."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Linear(NUM_CLASSES, 9, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(9, 9, bias=False) for _ in range(2))
        self.head = nn.Linear(9, NUM_CLASSES, bias=False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + F.dropout(block(x).tanh(), self.dropout, self.training)
        out: Tensor = self.head(x)
        return out


class ConvNet(nn.Module):
    """Convolutions normalised over the batch; rows are (NUM_CLASSES,) vectors."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Sequential(nn.Conv1d(1, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU()),
            nn.Sequential(nn.Conv1d(6, 3, 3, padding=1), nn.BatchNorm1d(3), nn.ReLU()),
        )
        self.head = nn.Linear(3 * NUM_CLASSES, NUM_CLASSES)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        if self.recompute and self.training:
            x = checkpoint(self.blocks, x, use_reentrant=False)
        else:
            x = self.blocks(x)
        out: Tensor = self.head(F.dropout(x.flatten(1), 0.1, self.training))
        return out


def mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over rows."""
    x, y = batch
    return F.cross_entropy(model(x), y)


def masked_loss(
    model: nn.Module, batch: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The mean over unmasked targets (NaN where there are none), and their count."""
    x, y = batch
    return F.cross_entropy(model(x), y, ignore_index=MASKED), (y != MASKED).sum()


def made_data(num_rows: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (num_rows, NUM_CLASSES), classes, and the same with most of them masked."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(num_rows, NUM_CLASSES, generator=generator, dtype=torch.float64)
    y = torch.randint(0, NUM_CLASSES, (num_rows,), generator=generator)
    masked = y.clone()
    masked[torch.rand(num_rows, generator=generator) < 0.6] = MASKED
    return x, y, masked
