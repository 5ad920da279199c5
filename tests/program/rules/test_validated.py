"""The checked-in table of rules says what brute force finds, and leaves out no rule."""

import random

import pytest
import torch

from placet.program.rules.table import RULES
from placet.program.signature import target_name
from testing.validate_rules import FILE, all_samples, by_name, line, validate

WITHOUT_A_KERNEL = {
    "aten._fused_rms_norm_backward",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._scaled_dot_product_fused_attention_overrideable_backward",
}
"""Operators of GPUs, which cannot run where the table is made."""

RECORDED = {text.split()[0]: text for text in FILE.read_text().splitlines()}
SAMPLES = by_name(all_samples())
SAMPLED = random.Random(4).sample(sorted(SAMPLES), len(SAMPLES) // 5)


def test_every_rule_is_in_the_table() -> None:
    known = {target_name(target) for target in RULES}
    assert known - RECORDED.keys() <= WITHOUT_A_KERNEL


def test_no_rule_in_the_table_is_wrong() -> None:
    assert all(text.endswith("right") for text in RECORDED.values())


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sampled_rule_is_as_recorded(name: str) -> None:
    assert line([validate(one) for one in SAMPLES[name]]) == RECORDED[name]


@pytest.mark.prove
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_rule_is_as_recorded(name: str) -> None:
    torch.set_num_threads(1)
    assert line([validate(one) for one in SAMPLES[name]]) == RECORDED[name]
