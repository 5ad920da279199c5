"""The models of bench/plan_vs_experts.py: small enough that slow links decide.

VGG-like      convolutions at a low resolution, then layers 4096 wide: nearly all of
              the weights, nearly none of the computation
wide          d = 1024 with few tokens a step: weights outweigh activations
"""

from collections.abc import Mapping

from torch import nn

from testing.models.example import Example
from testing.models.language import Gpt
from testing.models.vision import Vgg
from testing.models.zoo import images, text, vectors


def _vgg() -> nn.Module:
    stages = (1, 1, 1)
    return Vgg(stages, width=16, image=32, hidden=4096, num_classes=100)


def _wide() -> nn.Module:
    return Gpt(width=1024, num_layers=1, num_heads=16, vocabulary=1024, length=32)


def _small() -> nn.Module:
    return Gpt(width=128, num_layers=2, num_heads=4, vocabulary=512, length=64)


MODELS: Mapping[str, Example] = {
    example.name: example
    for example in (
        vectors("MLP", (1024, 1024, 1024, 1024), batch=64),
        images("VGG-like", _vgg, batch=32, side=32, num_classes=100),
        text("wide Transformer", _wide, batch=4, length=32, vocabulary=1024),
        text("small GPT", _small, batch=16, length=64, vocabulary=512),
    )
}
