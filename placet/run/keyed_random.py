"""Randomness keyed by (seed, step, operation, global index), on any number of ranks.

    generator state = f(seed, step), equal on all ranks     -> reseed
    op key          = next 62 bits of that generator        -> op_key
    block key       = splitmix64(op key, index >> 16)       -> _block_keys
    word            = mix(table[index & 0xffff], block key) -> _words, 31 bits
    element         = g(word), g a distribution             -> bernoulli_, uniform_, ...

`index` is the element's row-major index in the *global* tensor, so a part is drawn
without drawing the rest, and replicas agree. Only the key comes from the generator:
whatever restores the generator (activation checkpointing) repeats the numbers.

The functions here fill flat contiguous tensors, on CPU in blocks that stay in cache.
Integers, Bernoulli and uniform numbers are bit-equal on all devices; normal and
exponential ones go through log and cos, which may differ in a float64's last bit.

Source: splitmix64 (Steele, Lea, Flood 2014) for keys; lowbias32 (C. Wellons) for words;
differs in the arithmetic shifts, see NOTE [Signed words].
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK = 1 << 16
_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1
_WORD = 1.0 / (1 << 31)

# NOTE [Signed words]: torch shifts no unsigned 32-bit tensor, and a shift of int32
# keeps the sign. x ^= x >> s then clears the top bit and maps two words to one, which
# costs one bit of the word and nothing of its randomness: a random function need not
# be a bijection. The last step is such a one, so words are 31 bits and never negative.


def reseed(seed: int, step: int, *, generator: torch.Generator | None = None) -> int:
    """Start a forward's randomness: the same on every rank, another one each step.

    Args:
        seed: the job's seed.
        step: the training step; its micro-batches share it, as their rows differ.
        generator: the one to seed; torch's default generators when left out.

    Returns:
        The value the generator was seeded with.
    """
    value = mix64(mix64(seed & _MASK64) ^ (step & _MASK64)) >> 1
    if generator is None:
        torch.default_generator.manual_seed(value)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(value)
    else:
        generator.manual_seed(value)
    return value


def op_key(generator: torch.Generator | None = None) -> int:
    """The key of the next random operation: 62 bits of the (CPU) generator."""
    bits = torch.randint(1 << 62, (), generator=generator, device="cpu")
    return int(bits.item())


def mix64(value: int) -> int:
    """A well mixed 64-bit function of a 64-bit integer (splitmix64's)."""
    z = (value + _GOLDEN) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def bernoulli_(out: Tensor, probability: float | Tensor, key: int, start: int) -> None:
    """Fill with ones and zeros; a one has the given probability.

    Args:
        out: flat and contiguous: elements [start, start + n) of the global tensor.
        probability: a number in [0, 1], or one per element of `out`.
        key: the operation's key.
        start: global index of the first element.

    Raises:
        ValueError: a probability outside [0, 1].
    """
    if isinstance(probability, Tensor):
        for span, word in _words(key, start, out):
            out[span] = word.double().mul_(_WORD) < probability[span]
        return
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"bernoulli_ needs 0 <= p <= 1, got p={probability}")
    bound = round(probability * (1 << 31))
    if bound == 1 << 31:
        out.fill_(1)
        return
    for span, word in _words(key, start, out):
        out[span] = word.lt_(bound)


def uniform_(out: Tensor, low: float, high: float, key: int, start: int) -> None:
    """Fill with numbers in [low, high): 53 bits in float64, 24 in float32.

    Args: see `bernoulli_`.
    """
    if out.dtype == torch.float64:
        lanes = zip(_words(key, start, out), _words(~key, start, out), strict=True)
        for (span, first), (_, second) in lanes:
            unit = (first >> 5).double().mul_(2.0**-26)
            out[span] = unit.add_((second >> 4).double(), alpha=2.0**-53)
    else:
        bits = 1 - round(math.log2(torch.finfo(out.dtype).eps))
        for span, word in _words(key, start, out):
            word.bitwise_right_shift_(31 - bits)
            out[span] = word.to(torch.float32).mul_(2.0**-bits)
    if (low, high) != (0.0, 1.0):
        out.mul_(high - low).add_(low)


def normal_(out: Tensor, mean: float, std: float, key: int, start: int) -> None:
    """Fill with normal numbers (Box and Muller), at most 6.6 `std` from the mean.

    Args: see `bernoulli_`.
    """
    lanes = zip(_words(key, start, out), _words(~key, start, out), strict=True)
    for (span, first), (_, second) in lanes:
        radius = _open_unit(first).log_().mul_(-2.0).sqrt_()
        angle = second.double().mul_(2.0 * math.pi * _WORD)
        out[span] = radius.mul_(angle.cos_()).mul_(std).add_(mean)


def exponential_(out: Tensor, rate: float, key: int, start: int) -> None:
    """Fill with exponential numbers of the given rate.

    Args: see `bernoulli_`.
    """
    for span, word in _words(key, start, out):
        out[span] = _open_unit(word).log_().mul_(-1.0 / rate)


def randint_(out: Tensor, low: int, high: int, key: int, start: int) -> None:
    """Fill with integers in [low, high).

    Args: see `bernoulli_`.

    Raises:
        ValueError: an empty range.
    """
    if low >= high:
        raise ValueError(f"randint_ needs low < high, got [{low}, {high})")
    lanes = zip(_words(key, start, out), _words(~key, start, out), strict=True)
    for (span, first), (_, second) in lanes:
        wide = first.long().mul_(1 << 31).add_(second)
        out[span] = wide.remainder_(high - low).add_(low)


def _open_unit(word: Tensor) -> Tensor:
    """A word as a float64 in (0, 1], whose logarithm is finite."""
    return word.double().add_(1.0).mul_(_WORD)


def _words(key: int, start: int, out: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The 31-bit words of [start, start + n), span by span.

    Yields:
        The span in `out`, and its words in an int32 scratch tensor that the caller may
        change and that the next span overwrites.
    """
    stop = start + out.numel()
    first_block, last_block = start // _BLOCK, -(-stop // _BLOCK)
    keys = _block_keys(key & _MASK64, first_block, last_block)
    table = _table(out.device)
    at_once = _blocks_at_once(out.device)
    scratch = torch.empty(2, min(stop - start, _BLOCK), dtype=torch.int32)
    cuts = [*range(first_block, last_block, at_once), last_block]
    for block, next_block in pairwise(cuts):
        base = block * _BLOCK
        lo, hi = max(start, base), min(stop, next_block * _BLOCK)
        part = keys[:, block - first_block : next_block - first_block]
        if at_once == 1:
            word, spare = scratch[:, : hi - lo]
            torch.bitwise_xor(table[lo - base : hi - base], int(part[0, 0]), out=word)
            _mix_(word, spare, int(part[1, 0]))
        else:
            first, salt = torch.from_numpy(part.copy()).to(out.device)[:, :, None]
            grid = torch.bitwise_xor(table, first)
            _mix_(grid, torch.empty_like(grid), salt)
            word = grid.view(-1)[lo - base : hi - base]
        yield slice(lo - start, hi - start), word


def _blocks_at_once(device: torch.device) -> int:
    """Blocks per span: one, to stay in a CPU's cache; many, to fill a GPU."""
    return 1 if device.type == "cpu" else 1 << 8


def _mix_(word: Tensor, spare: Tensor, salt: int | Tensor) -> None:
    """Mix int32 words in place: shift, multiply, shift, salt, multiply, shift."""
    word.bitwise_xor_(torch.bitwise_right_shift(word, 16, out=spare))
    word.mul_(0x7FEB352D)
    word.bitwise_xor_(torch.bitwise_right_shift(word, 15, out=spare))
    word.add_(salt)
    word.mul_(0x846CA68B - (1 << 32))
    word.bitwise_xor_(torch.bitwise_right_shift(word, 16, out=spare))


def _block_keys(key: int, first: int, last: int) -> npt.NDArray[np.int32]:
    """(2, num_blocks): two 32-bit words per block of indices (`mix64`, vectorised)."""
    z = np.arange(first, last, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
    z ^= np.uint64(mix64(key))
    z += np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    words = np.stack([z >> np.uint64(32), z & np.uint64(0xFFFFFFFF)])
    return words.astype(np.uint32).view(np.int32)


@lru_cache(maxsize=16)
def _table(device: torch.device) -> Tensor:
    """A mixed 32-bit word for each place in a block."""
    x = np.arange(_BLOCK, dtype=np.uint32)
    for multiplier in (0x7FEB352D, 0x846CA68B):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(multiplier)
    x ^= x >> np.uint32(16)
    with torch.inference_mode(False):
        return torch.from_numpy(x.view(np.int32)).to(device)
