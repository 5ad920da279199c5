"""Rules of operators that only GPUs have: by formulas on a CPU, by kernels on a GPU."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from placet.program.signature import target_name
from testing import validate_rules
from testing.rule_samples.forms import Sample
from testing.rule_samples.gpu import BACKWARD, NOWHERE, RMS_BACKWARD, kernel, samples
from testing.validate_rules import validate
from tests.program.rules.test_validated import WITHOUT_A_KERNEL

WIDE = list(samples(torch.float64, torch.float64))
HALF = list(samples(torch.float16, torch.float32))
RESULTS = dict.fromkeys(BACKWARD, 2)
"""Results that are numbers: the others are seeds, lengths and what is not set."""


def name(sample: Sample) -> str:
    return target_name(sample.target)


def run_on(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Have operators run on a device, their tensors come from and go to the CPU."""
    run = validate_rules.run

    def there(
        target: Any, args: Any, kwargs: Any, inputs: Sequence[Tensor]
    ) -> list[Tensor | None]:
        made = run(kernel(target), args, kwargs, [x.to(device) for x in inputs])
        made = [None if x is None else x.cpu() for x in made]
        kept = RESULTS.get(target, len(made))
        return [*made[:kept], *[None] * (len(made) - kept)]

    monkeypatch.setattr(validate_rules, "run", there)


def check(sample: Sample) -> None:
    verdict = validate(sample)
    assert not verdict.errors, verdict.errors[:3]
    assert verdict.num_runs > 2 * verdict.num_signatures > 0


def test_all_operators_without_a_kernel_have_samples() -> None:
    assert {name(one) for one in WIDE} == WITHOUT_A_KERNEL


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(one, marks=[pytest.mark.prove] if number % 4 < 2 else [])
        for number, one in enumerate(WIDE)
    ],
    ids=name,
)
def test_rules_by_the_operators_formulas(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, "cpu")
    check(sample)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sample", HALF, ids=name)
def test_rules_by_the_operators_kernels(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sample.target in NOWHERE:
        pytest.skip("torch has no kernel of it for any device")
    run_on(monkeypatch, "cuda")
    check(sample)


def test_formulas_are_those_of_the_cpus_operators() -> None:
    q = torch.randn(2, 4, 6, 8, dtype=torch.float64)
    k = torch.randn(2, 4, 7, 8, dtype=torch.float64)
    for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    expected = for_cpu(q, k, k, 0.0, False, scale=0.5)
    flash = next(iter(BACKWARD))
    found = kernel(flash)(q, k, k, 0.0, False, scale=0.5)
    torch.testing.assert_close(found[:2], list(expected))
    assert RMS_BACKWARD not in NOWHERE
