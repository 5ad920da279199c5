"""Every sample of the heavy families is right in every way that it may be divided."""

import warnings

import pytest

from placet.program.rules.table import rule_of
from placet.program.signature import target_name
from testing.rule_samples import (
    attention,
    convolution,
    embedding,
    loss,
    norms,
    pooling,
    random,
    softmax,
)
from testing.rule_samples.forms import Sample
from testing.validate_rules import validate, whole

FAMILIES = (attention, convolution, embedding, loss, norms, pooling, random, softmax)
SAMPLES = [one for family in FAMILIES for one in family.SAMPLES]


@pytest.mark.parametrize("one", SAMPLES, ids=lambda one: target_name(one.target))
def test_all_ways_are_right(one: Sample) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        verdict = validate(one)
        assert rule_of(whole(one).operator)[1] == "own"
    assert not verdict.errors
    assert not verdict.unused
    assert verdict.num_runs
