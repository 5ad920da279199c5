"""Twenty architectures of a well-known library, tiny: captured as they compute.

A few by a seed in the quick suite, all in the long ones.
"""

import random

import pytest
import torch

from testing.architectures import ARCHITECTURES, example
from testing.models.eager import assert_capture_is_eager
from testing.models.example import in_float64

NAMES = tuple(ARCHITECTURES)
SEED = 4
QUICK = tuple(random.Random(SEED).sample(NAMES, 4))
REST = tuple(name for name in NAMES if name not in QUICK)
EVERY = [*QUICK, *(pytest.param(name, marks=pytest.mark.prove) for name in REST)]


def test_twenty_of_the_kinds_that_count() -> None:
    assert len(NAMES) == 20
    kinds = [name.partition(" (")[2].rstrip(")") for name in NAMES]
    assert kinds.count("experts") >= 2
    assert {"ALiBi", "state space", "encoder-decoder"} <= set(kinds)


@pytest.mark.parametrize("name", EVERY)
def test_captured_is_the_eager_step(name: str) -> None:
    torch.manual_seed(SEED)
    captured = assert_capture_is_eager(*in_float64(example(name)), example(name).loss)
    assert len(captured.graph.ops) > 200
