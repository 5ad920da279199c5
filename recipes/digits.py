"""A small convolutional network on scikit-learn's handwritten digits (8 x 8 pixels).

placet train digits -n 2
"""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.job import Job

NUM_CLASSES = 10
LARGEST_PIXEL = 16


def digit_split(test_share: float, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 digits in two parts: images (rows, 1, 8, 8) in 0..1, and classes.

    Args:
        test_share: share of the digits held out.
        seed: keys which ones.
    """
    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    pixels = torch.tensor(images[order] / LARGEST_PIXEL, dtype=torch.float32)
    labels = torch.tensor(classes[order], dtype=torch.int64)
    num_test = round(test_share * len(images))
    pixels = pixels.view(-1, 1, 8, 8)
    return (
        TensorDataset(pixels[num_test:], labels[num_test:]),
        TensorDataset(pixels[:num_test], labels[:num_test]),
    )


def small_cnn(width: int) -> nn.Sequential:
    """Three convolutions with batch normalisation, and a linear layer.

    Shapes: images (rows, 1, 8, 8) -> logits (rows, 10).
    """
    return nn.Sequential(
        *_stage(1, width),
        *_stage(width, width),
        nn.MaxPool2d(2),
        *_stage(width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, NUM_CLASSES),
    )


def _stage(width_in: int, width_out: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    return (
        nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(),
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy of a batch (images, classes)."""
    images, classes = batch
    return F.cross_entropy(model(images), classes)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Accuracy: the share of digits that are named rightly."""
    images, classes = batch
    return {"accuracy": (model(images).argmax(dim=-1) == classes).float().mean()}


def digits(
    *,
    width: int = 24,
    batch_size: int = 64,
    epochs: int = 12,
    lr: float = 1e-2,
    test_share: float = 0.2,
    local_batch_norm: bool = False,
    zero: Literal[0, 1, 2, 3] = 0,
    seed: int = 0,
) -> Job:
    """A small CNN on scikit-learn's digits: at least 97% of the test set in seconds.

    Args:
        width: channels of the first convolution.
        batch_size: rows of a global batch.
        epochs: times through the training part.
        lr: the highest learning rate.
        test_share: share of the digits that only test.
        local_batch_norm: normalise by each rank's own rows, as DDP does.
        zero: ZeRO level, 0 to 3.
        seed: keys initial values, the split and the order.
    """
    torch.manual_seed(seed)
    train, test = digit_split(test_share, seed)
    data = Data(train, batch_size)
    assert data.num_batches is not None
    steps = epochs * data.num_batches
    model = small_cnn(width)
    return Job(
        model,
        loss,
        AdamW(model.parameters(), lr=lr, weight_decay=1e-2),
        data,
        steps=steps,
        scheduler=lambda optimizer: OneCycleLR(optimizer, lr, total_steps=steps + 1),
        validation=Data(test, 256, shuffle=False),
        metrics=metrics,
        zero=zero,
        local_batch_norm=local_batch_norm,
        seed=seed,
        name="digits",
    )
