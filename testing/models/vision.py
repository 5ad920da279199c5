"""Models of images: VGG, ResNet and ViT, as their papers have them.

    B batch, C channels, H and W height and width, D width of a token

Sources: VGG (arXiv:1409.1556) table 1; ResNet (arXiv:1512.03385) table 1, with the
stride in the 3x3 convolution; ViT (arXiv:2010.11929).
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

VGG_STAGES = {
    11: (1, 1, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
}


class Vgg(nn.Module):
    """Convolutions in five stages, then three fully connected layers.

    Args:
        stages: convolutions of each stage; each ends by halving height and width.
        width: channels of the first stage; doubled up to eight times as many.
        image: height and width of an image; a multiple of 2**len(stages).
        hidden: width of the fully connected layers.
        num_classes: what is predicted.
        norms: with batch norm after each convolution.
        dropout: before the last two layers.
    """

    def __init__(
        self,
        stages: Sequence[int] = VGG_STAGES[11],
        *,
        width: int = 64,
        image: int = 224,
        hidden: int = 4096,
        num_classes: int = 1000,
        norms: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, num_convolutions in enumerate(stages):
            made = width * min(2**stage, 8)
            for _ in range(num_convolutions):
                layers.append(nn.Conv2d(channels, made, 3, padding=1))
                if norms:
                    layers.append(nn.BatchNorm2d(made))
                layers.append(nn.ReLU())
                channels = made
            layers.append(nn.MaxPool2d(2))
        side = image // 2 ** len(stages)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, num_classes]."""
        return cast(Tensor, self.classifier(self.features(images).flatten(1)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution beside a short cut.

    Args:
        channels: of the input.
        inner: of the 3x3 convolution; the output has four times as many.
        stride: of the 3x3 convolution.
    """

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        made = 4 * inner
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, made, 1, bias=False),
            nn.BatchNorm2d(made),
        )
        self.short_cut: nn.Module = nn.Identity()
        if stride != 1 or channels != made:
            self.short_cut = nn.Sequential(
                nn.Conv2d(channels, made, 1, stride, bias=False), nn.BatchNorm2d(made)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, H, W] -> [B, 4 inner, H / stride, W / stride]."""
        return torch.relu(self.body(x) + self.short_cut(x))


class ResNet(nn.Module):
    """Stages of bottlenecks.

    Args:
        stages: bottlenecks of each stage.
        width: channels of the stem.
        num_classes: what is predicted.
    """

    def __init__(
        self,
        stages: Sequence[int] = (3, 4, 6, 3),
        *,
        width: int = 64,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, num_blocks in enumerate(stages):
            for index in range(num_blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width * 2**stage, stride))
                channels = 4 * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, num_classes]."""
        return cast(Tensor, self.head(self.blocks(self.stem(images)).mean((2, 3))))


class Vit(nn.Module):
    """Patches of an image as tokens of an encoder.

    Args:
        image: height and width of an image.
        patch: height and width of a patch.
        width: of a token.
        num_heads, num_layers: of the encoder.
        num_classes: what is predicted.
    """

    def __init__(
        self,
        *,
        image: int = 224,
        patch: int = 16,
        width: int = 768,
        num_heads: int = 12,
        num_layers: int = 12,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        num_patches = (image // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, num_patches + 1, width))
        self.layers = nn.ModuleList(
            EncoderLayer(width, num_heads) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, num_classes]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x[:, 0])))


class EncoderLayer(nn.Module):
    """Attention of all to all, then a perceptron; norms before both.

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
        q, k, v = (
            f(h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        h = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        h = nn.functional.gelu(self.up(self.norm_up(x)))
        return cast(Tensor, x + self.down(h))
