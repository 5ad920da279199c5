"""Keyed numbers: parts equal the whole, and they are as random as they should be."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from placet.run import keyed_random
from placet.run.keyed_random import (
    bernoulli_,
    exponential_,
    mix64,
    normal_,
    op_key,
    randint_,
    reseed,
    uniform_,
)

Fill = Callable[[Tensor, int, int], None]

FILLS: dict[str, tuple[torch.dtype, Fill]] = {
    "bernoulli": (torch.float32, lambda out, k, i: bernoulli_(out, 0.3, k, i)),
    "bool": (torch.bool, lambda out, k, i: bernoulli_(out, 0.3, k, i)),
    "uniform": (torch.float32, lambda out, k, i: uniform_(out, 0.0, 1.0, k, i)),
    "uniform64": (torch.float64, lambda out, k, i: uniform_(out, -2.0, 1.0, k, i)),
    "bfloat16": (torch.bfloat16, lambda out, k, i: uniform_(out, 0.0, 1.0, k, i)),
    "normal": (torch.float32, lambda out, k, i: normal_(out, 1.0, 2.0, k, i)),
    "exponential": (torch.float32, lambda out, k, i: exponential_(out, 2.0, k, i)),
    "randint": (torch.int64, lambda out, k, i: randint_(out, -5, 1000, k, i)),
}

GOLDEN = [
    4464338121042273264,
    4490957112889889140,
    1092577033754282667,
    3197669781521057206,
    460475161436934109,
    1300053848051006325,
]


def filled(name: str, num: int, key: int = 7, start: int = 0) -> Tensor:
    dtype, fill = FILLS[name]
    out = torch.empty(num, dtype=dtype)
    fill(out, key, start)
    return out


def uniform64(num: int, key: int, start: int = 0) -> Tensor:
    out = torch.empty(num, dtype=torch.float64)
    uniform_(out, 0.0, 1.0, key, start)
    return out


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (1, 65537), (65535, 131073), (70001, 199999)]
)
def test_keyed_part_equals_the_same_part_of_the_whole(name: str, start: int, stop: int):
    whole = filled(name, 200_000)
    assert torch.equal(filled(name, stop - start, start=start), whole[start:stop])


@pytest.mark.parametrize("name", FILLS)
def test_keyed_spans_of_many_blocks_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    one_by_one = filled(name, 300_000, start=12_345)
    monkeypatch.setattr(keyed_random, "_blocks_at_once", lambda device: 2)
    assert torch.equal(filled(name, 300_000, start=12_345), one_by_one)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["bernoulli", "uniform", "uniform64", "randint"])
def test_keyed_numbers_are_the_same_on_cuda(name: str):
    dtype, fill = FILLS[name]
    out = torch.empty(300_000, dtype=dtype, device="cuda")
    fill(out, 7, 12_345)
    assert torch.equal(out.cpu(), filled(name, 300_000, start=12_345))


def test_keyed_numbers_never_change():
    # A checkpoint taken today must resume to the same masks with a later placet.
    out = torch.empty(6, dtype=torch.int64)
    randint_(out, 0, 1 << 62, key=12345, start=65533)
    assert out.tolist() == GOLDEN
    assert mix64(0) == 0xE220A8397B1DCDAF  # splitmix64's published first value


def test_keyed_index_past_32_bits():
    far = uniform64(1000, key=3, start=(1 << 33) + 17)
    near = uniform64(1000, key=3, start=17)
    assert not torch.equal(far, near)
    assert abs(float(far.mean()) - 0.5) < 0.05


def correlation(a: Tensor, b: Tensor) -> float:
    """In standard deviations of its distribution for independent numbers."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) * math.sqrt(len(a))


@pytest.mark.parametrize("key", [0, 1, (1 << 62) - 1, 0x123456789ABCDEF])
def test_keyed_uniform_is_uniform(key: int):
    num, bins = 1 << 19, 1024
    x = uniform64(num, key)
    assert abs(float(x.mean()) - 0.5) * math.sqrt(12 * num) < 4.5
    for values in (x, (x * 2**21) % 1.0):  # the first bits, and the first lane's last
        counts = torch.histc(values, bins, 0.0, 1.0)
        chi_square = float(((counts - num / bins) ** 2).sum()) / (num / bins)
        assert abs(chi_square - bins) < 5 * math.sqrt(2 * bins)
    for lag in (1, 2, 3, 256, 512, 32768, 65536):
        assert abs(correlation(x[:-lag], x[lag:])) < 4.5, lag
    for other in (key ^ 1, key ^ (1 << 31), key ^ (1 << 61), key + 65536):
        assert abs(correlation(x, uniform64(num, other))) < 4.5, other


def test_keyed_pairs_fill_the_square():
    x = uniform64(1 << 20, key=99)
    places = (x[0::2] * 32).long() * 32 + (x[1::2] * 32).long()
    counts = torch.bincount(places, minlength=1024).double()
    expected = (1 << 19) / 1024
    chi_square = float(((counts - expected) ** 2).sum()) / expected
    assert abs(chi_square - 1024) < 5 * math.sqrt(2 * 1024)


def test_keyed_bits_are_fair_over_keys():
    # A few elements over many keys: what a row sees over the steps.
    draws = []
    for key in range(2000):
        out = torch.empty(4, dtype=torch.int64)
        randint_(out, 0, 1 << 62, mix64(key) >> 2, start=1000)
        draws.append(out)
    words = torch.stack(draws)
    for bit in range(62):
        rate = ((words >> bit) & 1).double().mean(0)
        assert float((rate - 0.5).abs().max()) * 2 * math.sqrt(2000) < 4.5, bit


def test_keyed_bernoulli_rate():
    for p in (1e-3, 0.1, 0.5, 0.9):
        out = torch.empty(1 << 20)
        bernoulli_(out, p, key=5, start=3)
        assert abs(float(out.mean()) - p) < 5 * math.sqrt(p * (1 - p) / (1 << 20))
        assert set(out.unique().tolist()) == {0.0, 1.0}
    for p in (0.0, 1.0):
        bernoulli_(out, p, key=5, start=0)
        assert float(out.min()) == float(out.max()) == p


def test_keyed_bernoulli_by_element():
    p = torch.tensor([0.0, 1.0, 0.5, 0.25]).double().repeat(20_000)
    out = torch.empty(80_000, dtype=torch.bool)
    bernoulli_(out, p, key=5, start=0)
    rates = out.double().view(-1, 4).mean(0)
    assert rates[0] == 0.0
    assert rates[1] == 1.0
    torch.testing.assert_close(rates, p[:4], atol=0.02, rtol=0)


def test_keyed_bernoulli_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match=r"0 <= p <= 1, got p=1\.5"):
        bernoulli_(torch.empty(3), 1.5, key=1, start=0)
    with pytest.raises(ValueError, match="low < high"):
        randint_(torch.empty(3), 2, 2, key=1, start=0)


def test_keyed_normal_and_exponential_have_their_quantiles():
    num = 1 << 19
    x = torch.empty(num, dtype=torch.float64)
    normal_(x, 1.0, 2.0, key=11, start=5)
    for q in (0.001, 0.1, 0.5, 0.9, 0.999):
        bound = 1.0 + 2.0 * float(torch.special.ndtri(torch.tensor(q).double()))
        below = float((x < bound).double().mean())
        assert abs(below - q) < 5 * math.sqrt(q * (1 - q) / num)
    assert abs(correlation(x[:-1], x[1:])) < 4.5
    exponential_(x, 2.0, key=11, start=5)
    for q in (0.001, 0.1, 0.5, 0.9, 0.999):
        below = float((x < -math.log1p(-q) / 2.0).double().mean())
        assert abs(below - q) < 5 * math.sqrt(q * (1 - q) / num)
    assert float(x.min()) >= 0.0


def test_keyed_uniform_stays_in_its_range():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out = torch.empty(1 << 18, dtype=dtype)
        uniform_(out, 0.0, 1.0, key=1, start=0)
        assert float(out.min()) >= 0.0
        assert float(out.max()) < 1.0
        assert abs(float(out.double().mean()) - 0.5) < 0.01


def test_keyed_randint_is_even():
    out = torch.empty(60_000, dtype=torch.int64)
    randint_(out, -3, 3, key=4, start=0)
    counts = torch.bincount(out + 3, minlength=6)
    assert len(counts) == 6
    assert float((counts - 10_000).abs().max()) < 500


def test_reseed_depends_on_seed_and_step_alone():
    seen = {reseed(seed, step) for seed in range(20) for step in range(20)}
    assert len(seen) == 400
    own = torch.Generator()
    reseed(3, 4, generator=own)
    reseed(3, 4)
    assert op_key() == op_key(own)
    before = torch.get_rng_state()
    first, second = op_key(), op_key()
    assert first != second
    torch.set_rng_state(before)
    assert (op_key(), op_key()) == (first, second)


def test_reseed_takes_negative_and_large_seeds():
    assert reseed(-1, 0) != reseed(1, 0)
    assert 0 <= reseed(1 << 70, 5) < 1 << 63
