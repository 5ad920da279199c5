"""Named models: real shapes, which fit the meta device, and tiny ones for numerics.

with torch.device("meta"):
    model = REAL["GPT-2 XL"].model_fn()
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from testing.models.example import Example
from testing.models.language import Gpt, Llama
from testing.models.tables import Dlrm, perceptron
from testing.models.vision import VGG_STAGES, ResNet, Vgg, Vit

Pair = tuple[Any, Tensor]


def class_loss(model: nn.Module, batch: Pair) -> Tensor:
    """Cross-entropy of classes, or of each token's."""
    logits = model(batch[0])
    return cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def _click_loss(model: nn.Module, batch: Pair) -> Tensor:
    return binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def images(
    name: str,
    model: Callable[[], nn.Module],
    *,
    batch: int,
    side: int,
    num_classes: int = 1000,
) -> Example:
    """A classifier of images [batch, 3, side, side]."""

    def batch_fn() -> Pair:
        pixels = torch.randn(batch, 3, side, side)
        return pixels, torch.randint(num_classes, (batch,))

    return Example(name, model, batch_fn, class_loss)


def text(
    name: str,
    model: Callable[[], nn.Module],
    *,
    batch: int,
    length: int,
    vocabulary: int,
) -> Example:
    """A language model of sequences [batch, length]."""

    def batch_fn() -> Pair:
        shape = (batch, length)
        return torch.randint(vocabulary, shape), torch.randint(vocabulary, shape)

    return Example(name, model, batch_fn, class_loss)


def vectors(name: str, sizes: tuple[int, ...], *, batch: int) -> Example:
    """A perceptron of vectors [batch, sizes[0]]."""

    def batch_fn() -> Pair:
        return torch.randn(batch, sizes[0]), torch.randint(sizes[-1], (batch,))

    return Example(name, lambda: perceptron(sizes), batch_fn, class_loss)


def clicks(
    name: str,
    tables: tuple[int, ...],
    *,
    batch: int,
    width: int,
    num_dense: int,
    hidden: int,
) -> Example:
    """A recommender."""

    def model_fn() -> nn.Module:
        return Dlrm(tables, width=width, num_dense=num_dense, hidden=hidden)

    def batch_fn() -> Pair:
        rows = torch.stack([torch.randint(n, (batch,)) for n in tables], 1)
        return (torch.randn(batch, num_dense), rows), torch.rand(batch)

    return Example(name, model_fn, batch_fn, _click_loss)


def _gpt(
    name: str,
    width: int,
    num_layers: int,
    num_heads: int,
    *,
    batch: int,
    length: int = 1024,
    vocabulary: int = 50257,
) -> Example:
    def model_fn() -> nn.Module:
        return Gpt(
            width=width,
            num_layers=num_layers,
            num_heads=num_heads,
            vocabulary=vocabulary,
            length=length,
        )

    return text(name, model_fn, batch=batch, length=length, vocabulary=vocabulary)


def _llama(
    name: str,
    width: int,
    inner: int,
    num_layers: int,
    num_heads: int,
    num_groups: int,
    *,
    batch: int,
    length: int,
    vocabulary: int,
) -> Example:
    def model_fn() -> nn.Module:
        return Llama(
            width=width,
            inner=inner,
            num_layers=num_layers,
            num_heads=num_heads,
            num_groups=num_groups,
            vocabulary=vocabulary,
        )

    return text(name, model_fn, batch=batch, length=length, vocabulary=vocabulary)


def _vgg(depth: int, *, norms: bool) -> Example:
    def model_fn() -> nn.Module:
        return Vgg(VGG_STAGES[depth], norms=norms)

    name = f"VGG-{depth}, batch norm" if norms else f"VGG-{depth}"
    return images(name, model_fn, batch=256, side=224)


def _tiny_vgg(name: str, *, norms: bool) -> Example:
    def model_fn() -> nn.Module:
        return Vgg((1, 1), width=4, image=8, hidden=16, num_classes=8, norms=norms)

    return images(name, model_fn, batch=8, side=8, num_classes=8)


def _tiny_resnet() -> nn.Module:
    return ResNet((1, 1), width=4, num_classes=8)


def _tiny_vit() -> nn.Module:
    return Vit(image=8, patch=4, width=16, num_heads=4, num_layers=2, num_classes=8)


def _named(examples: tuple[Example, ...]) -> Mapping[str, Example]:
    return {example.name: example for example in examples}


REAL: Mapping[str, Example] = _named(
    (
        *(_vgg(depth, norms=norms) for depth in (11, 16) for norms in (False, True)),
        images("ResNet-50", ResNet, batch=256, side=224),
        images("ViT-B/16", Vit, batch=256, side=224),
        _gpt("GPT-2", 768, 12, 12, batch=32),
        _gpt("GPT-2 medium", 1024, 24, 16, batch=32),
        _gpt("GPT-2 large", 1280, 36, 20, batch=32),
        _gpt("GPT-2 XL", 1600, 48, 25, batch=32),
        _gpt("GPT-3", 12288, 96, 96, batch=1536, length=2048),
        _gpt("wide Transformer", 1024, 4, 16, batch=4, length=128, vocabulary=8192),
        _llama(
            "LLaMA, grouped heads",
            4096,
            11008,
            32,
            32,
            8,
            batch=32,
            length=2048,
            vocabulary=32000,
        ),
        vectors("MLP", (4096, 4096, 4096, 4096, 1000), batch=256),
        clicks(
            "DLRM", (1_000_000,) * 8, batch=2048, width=64, num_dense=13, hidden=512
        ),
    )
)
TINY: Mapping[str, Example] = _named(
    (
        _tiny_vgg("VGG", norms=False),
        _tiny_vgg("VGG, batch norm", norms=True),
        images("ResNet", _tiny_resnet, batch=8, side=16, num_classes=8),
        images("ViT", _tiny_vit, batch=8, side=8, num_classes=8),
        _gpt("GPT", 16, 2, 4, batch=4, length=8, vocabulary=32),
        _llama("LLaMA", 16, 32, 2, 4, 2, batch=4, length=8, vocabulary=32),
        vectors("MLP", (16, 32, 16, 8), batch=8),
        clicks("DLRM", (16, 12), batch=8, width=8, num_dense=4, hidden=16),
    )
)
