import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from placet.job.events import Evaluated, Finished, Result
from recipes.char_gpt import (
    GPT,
    FinalResult,
    generate,
    loss,
    metrics,
    optimizer_of,
    rotated,
    warm_up_then_cosine,
)
from recipes.stdlib_text import TextSplit


def small_gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(width=16, depth=2, num_heads=2, dropout=dropout).double()


def test_gpt_sees_no_later_byte():
    model = small_gpt()
    text = torch.randint(256, (2, 12))
    changed = text.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 256
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7], after[:, 7])


def test_gpt_head_is_tied_and_starts_near_uniform():
    model = small_gpt()
    assert model.head.weight is model.embed.weight
    windows = torch.randint(256, (4, 33))
    with torch.no_grad():
        nats, count = loss(model, windows)
        bits, _ = metrics(model, windows)["bits_per_byte"]
    assert count == 4 * 32
    assert float(nats) == pytest.approx(math.log(256), rel=0.05)
    assert float(bits) == pytest.approx(float(nats) / math.log(2))


def test_gpt_dropout_acts_in_training_only():
    model = small_gpt(dropout=0.5)
    text = torch.randint(256, (1, 8))
    assert not torch.equal(model(text), model(text))
    model.eval()
    assert torch.equal(model(text), model(text))


def test_gpt_width_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="width 100 does not divide into 3 heads"):
        GPT(width=100, depth=1, num_heads=3)


def test_rotated_products_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    turned_q, turned_k = rotated(q.expand(10, 8)), rotated(k.expand(10, 8))
    products = turned_q @ turned_k.T
    for distance in range(-5, 6):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5)


def test_learning_rate_warms_up_and_falls():
    model = small_gpt()
    optimizer = optimizer_of(model, lr=1.0, weight_decay=0.1)
    scheduler = warm_up_then_cosine(optimizer, steps=100)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0.05 <= rates[-1] < 0.06


def test_optimizer_decays_matrices_only():
    groups = optimizer_of(small_gpt(), lr=1.0, weight_decay=0.1).param_groups
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert all(p.dim() == 2 for p in groups[0]["params"])
    counted = sum(len(g["params"]) for g in groups)
    assert counted == len(list(small_gpt().parameters()))


def test_generate_repeats_with_its_seed_and_keeps_the_mode():
    model = small_gpt()
    first = generate(model, b"def ", 12, context=8, seed=1)
    assert first == generate(model, b"def ", 12, context=8, seed=1)
    assert first != generate(model, b"def ", 12, context=8, seed=2)
    assert first.startswith("def ")
    assert model.training


def test_final_result_scores_the_same_bytes_for_all():
    letters = np.frombuffer(b"abcabcabdabc" * 30, np.uint8)
    text = TextSplit(letters, letters[:101], ("a.py",), ("b.py",))
    emitted: list[Any] = []
    job = SimpleNamespace(name="gpt", rank=0, model=small_gpt(), emit=emitted.append)
    result = FinalResult(text, context=10, sample_bytes=3)
    result(job, Evaluated(5, {"loss": 1.0, "bits_per_byte": 1.5}))
    result(job, Finished("stopped", 5, 1.0))
    assert emitted == []
    result(job, Finished("done", 5, 1.0))
    (event,) = emitted
    assert isinstance(event, Result)
    assert event.rows[0] == ("gpt after 5 steps", 1.5)
    assert event.rows[1][1] < 2.0  # order 2: three letters, nearly periodic
    assert len(event.rows) == 3
    assert event.text.startswith("import os")
