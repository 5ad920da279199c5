"""The models are what they are named after, and capture sees what they compute."""

import pytest
import torch

from testing.models.eager import assert_capture_is_eager
from testing.models.example import in_float64
from testing.models.zoo import REAL, TINY

# Millions of parameters: the papers', or torchvision's own count.
PARAMETERS = {
    "VGG-11": 132.86,
    "VGG-16": 138.36,
    "VGG-16, batch norm": 138.37,
    "ResNet-50": 25.56,
    "ViT-B/16": 86.57,
    "GPT-2": 124.44,
    "GPT-2 medium": 354.82,
    "GPT-2 large": 774.03,
    "GPT-2 XL": 1557.61,
    "GPT-3": 174_591.0,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_real_shapes_have_the_papers_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = REAL[name].model_fn()
    found = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert found == pytest.approx(PARAMETERS[name], rel=5e-4)


@pytest.mark.parametrize("name", TINY)
def test_captured_is_the_eager_step(name: str) -> None:
    torch.manual_seed(0)
    example = TINY[name]
    assert_capture_is_eager(*in_float64(example), example.loss)
