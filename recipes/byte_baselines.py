"""Two baselines that any byte model should be measured against, in bits per byte.

An order-2 byte model predicts a byte from the two before it. With counts c of the
training text, interpolated (Witten-Bell) down to the uniform distribution:

    p(x | ab) = (c(abx) + k(ab) p(x | b)) / (c(ab) + k(ab))

and likewise p(x | b) from p(x), p(x) from 1/256; k(.) counts the distinct bytes seen
after a context.                                            -> order2_bits_per_byte

Python's lzma compresses the validation text alone: it never sees the training text,
for which its format has no place, but it may use all validation text before a byte.
                                                            -> lzma_bits_per_byte
"""

import lzma

import numpy as np


def backed_off(counts: np.ndarray, shorter: np.ndarray) -> np.ndarray:
    """Witten-Bell: probabilities (..., 256) of counts, mixed with a shorter context's.

    A context never seen has the shorter context's probabilities.
    """
    total = counts.sum(axis=-1, keepdims=True)
    distinct = np.maximum((counts > 0).sum(axis=-1, keepdims=True), 1)
    mixed: np.ndarray = (counts + distinct * shorter) / (total + distinct)
    return mixed


def order2_bits_per_byte(train: np.ndarray, validation: np.ndarray) -> float:
    """Mean bits the order-2 model of `train` needs for validation[1:].

    Args:
        train: training bytes, uint8, at least 3.
        validation: validation bytes, uint8, at least 2. The first is context only.
    """
    codes = train.astype(np.int64)
    pairs = codes[:-1] * 256 + codes[1:]
    counts3 = np.bincount(pairs[:-1] * 256 + codes[2:], minlength=256**3)
    counts3 = counts3.reshape(256, 256, 256).astype(np.float32)
    counts2 = np.bincount(pairs, minlength=256**2).reshape(256, 256)
    counts1 = np.bincount(codes, minlength=256)

    order0 = backed_off(counts1.astype(np.float64), np.full(256, 1 / 256))
    order1 = backed_off(counts2.astype(np.float64), order0)

    targets = validation.astype(np.int64)
    first = order1[targets[0], targets[1]]
    before2, before1, target = targets[:-2], targets[1:-1], targets[2:]
    # Only the probabilities asked for: all 2**24 would take half a gigabyte.
    seen = counts3[before2, before1, target].astype(np.float64)
    total = counts3.sum(axis=-1, dtype=np.float64)[before2, before1]
    distinct = np.maximum(np.count_nonzero(counts3, axis=-1), 1)[before2, before1]
    rest = (seen + distinct * order1[before1, target]) / (total + distinct)
    return float(-(np.log2(first) + np.log2(rest).sum()) / (len(targets) - 1))


def lzma_bits_per_byte(validation: np.ndarray) -> float:
    """Bits a byte of the validation text takes compressed by Python's lzma, alone."""
    packed = lzma.compress(validation.tobytes(), preset=9 | lzma.PRESET_EXTREME)
    return 8 * len(packed) / len(validation)
