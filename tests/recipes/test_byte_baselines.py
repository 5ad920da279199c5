import lzma
import math
from collections import Counter

import numpy as np
import pytest

from recipes.byte_baselines import (
    backed_off,
    lzma_bits_per_byte,
    order2_bits_per_byte,
)


def reference_bits_per_byte(train: bytes, validation: bytes) -> float:
    """The formula of recipes/byte_baselines.py, one byte at a time."""
    grams = [
        Counter(train[i : i + n] for i in range(len(train) - n + 1)) for n in (1, 2, 3)
    ]

    def chance(context: bytes, byte: int) -> float:
        counts = grams[len(context)]
        after = {x: counts[context + bytes([x])] for x in range(256)}
        distinct = max(1, sum(n > 0 for n in after.values()))
        shorter = chance(context[1:], byte) if context else 1 / 256
        return (after[byte] + distinct * shorter) / (sum(after.values()) + distinct)

    bits = [
        -math.log2(chance(validation[max(0, i - 2) : i], validation[i]))
        for i in range(1, len(validation))
    ]
    return sum(bits) / len(bits)


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        (b"abracadabra", b"abra cadabra"),
        (b"aaaa", b"ab"),
        (b"the cat sat on the mat", b"the hat\x00\xff"),
        (bytes(range(256)), bytes(range(255, -1, -4))),
    ],
)
def test_order2_equals_reference(train: bytes, validation: bytes):
    found = order2_bits_per_byte(
        np.frombuffer(train, np.uint8), np.frombuffer(validation, np.uint8)
    )
    assert found == pytest.approx(reference_bits_per_byte(train, validation), rel=1e-6)


def test_backed_off_probabilities_sum_to_one():
    counts = np.random.default_rng(0).integers(0, 3, (5, 256)).astype(float)
    counts[2] = 0  # a context never seen
    shorter = np.random.default_rng(1).dirichlet(np.ones(256))
    mixed = backed_off(counts, shorter)
    assert np.allclose(mixed.sum(axis=-1), 1)
    assert np.allclose(mixed[2], shorter)


def test_lzma_is_pythons_best_preset():
    text = np.frombuffer(b"def f(x):\n    return x\n" * 40, np.uint8)
    packed = lzma.compress(text.tobytes(), preset=9 | lzma.PRESET_EXTREME)
    assert lzma_bits_per_byte(text) == 8 * len(packed) / len(text)
