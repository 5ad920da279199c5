"""Rules of operators that have none: where they come from, and that they are right."""

import warnings

import pytest
import torch

from placet.placement.placement import Partial
from placet.program.rules.table import rule_of, signatures
from placet.program.signature import target_name
from testing.rule_samples.fallback import SAMPLES
from testing.rule_samples.forms import Sample, T, sample
from testing.validate_rules import validate, whole

aten = torch.ops.aten


@pytest.mark.parametrize("one", SAMPLES, ids=lambda one: target_name(one.target))
def test_found_rules_are_right(one: Sample) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="index_reduce")
        assert not validate(one).errors


@pytest.mark.parametrize(
    ("one", "source"),
    [
        (sample(aten.linalg_inv_ex.default, T(4, 3, 3)), "dtensor"),
        (sample(aten.pixel_shuffle.default, T(4, 8, 3, 3), 2), "decomposition"),
        (
            sample(aten._cdist_forward.default, T(4, 3), T(5, 3), 2.0, None),
            "replicated",
        ),
    ],
)
def test_the_source_of_a_rule_is_told(one: Sample, source: str) -> None:
    assert rule_of(whole(one).operator)[1] == source


def test_partial_inputs_of_dtensor_are_not_trusted() -> None:
    one = sample(aten._fft_c2c.default, T(4, 6, dtype=torch.complex128), (1,), 0, True)
    operator = whole(one).operator
    assert rule_of(operator)[1] == "dtensor"
    found = signatures(operator)
    assert len(found) > 1
    assert not any(isinstance(p, Partial) for s in found for p in s.inputs)
