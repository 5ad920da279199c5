"""What rules are made of: cuts of views that match, letters, and a check that bites.

A rule is right if every way it gives is what the whole operator gives; see
testing/validate_rules.py. Here wrong ones are planted, to see that it finds them.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placet.placement.layout import Layout, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S
from placet.program.graph import TensorMeta
from placet.program.rules import table
from placet.program.rules.matmul import BY_NAME
from placet.program.rules.pattern import by_letters, part_sizes, same_cuts
from placet.program.rules.table import fits, rule_of, signatures
from placet.program.rules.views import groups
from placet.program.signature import Operator, Rule, Signature, Slot, target_name
from testing.rule_samples.forms import Sample, T, mask, sample
from testing.validate_rules import validate, whole

aten = torch.ops.aten
SIZES = st.integers(1, 12)
CUTS = st.lists(st.integers(2, 4), min_size=1, max_size=2)


def _operator(one: Sample) -> Operator:
    return whole(one).operator


def _ways(one: Sample) -> set[Signature]:
    return set(signatures(_operator(one)))


def _mesh(cuts: list[int]) -> Mesh:
    return Mesh(", ".join(f"a{i}={n}" for i, n in enumerate(cuts)))


def _intervals(size: int, cuts: list[int]) -> list[tuple[int, int]]:
    mesh = _mesh(cuts)
    layout = Layout(mesh, [S(0)] * len(cuts))
    return [part_box((size,), layout, rank)[0] for rank in mesh.ranks]


@given(a=SIZES, inner=SIZES, cuts=CUTS, data=st.data())
@settings(max_examples=300, deadline=None)
def test_cuts_match_where_all_ranks_have_the_same_elements(
    a: int, inner: int, cuts: list[int], data: st.DataObject
) -> None:
    total = a * inner
    divisors = [b for b in range(1, total + 1) if total % b == 0]
    b = data.draw(st.sampled_from(divisors))
    src = [(i * inner, j * inner) for i, j in _intervals(a, cuts)]
    dst = [(i * total // b, j * total // b) for i, j in _intervals(b, cuts)]
    assert same_cuts((a, inner), (b, total // b), cuts) == (src == dst)


@given(size=st.integers(0, 30), cuts=CUTS)
def test_part_sizes_are_those_of_the_layout(size: int, cuts: list[int]) -> None:
    assert part_sizes(size, cuts) == {j - i for i, j in _intervals(size, cuts)}


@given(st.lists(st.lists(st.integers(1, 4), max_size=3), max_size=3), st.data())
def test_groups_hold_the_same_elements(
    factors: list[list[int]], data: st.DataObject
) -> None:
    src = tuple(math.prod(part) for part in factors)
    flat = [size for part in factors for size in part]
    cut = data.draw(st.integers(0, len(flat)))
    dst = (*flat[:cut], math.prod(flat[cut:]))
    found = groups(src, dst)
    for left, right in found:
        assert math.prod(src[i] for i in left) == math.prod(dst[j] for j in right)
    assert [i for left, _ in found for i in left] == [
        i for i, size in enumerate(src) if size != 1
    ]
    assert [j for _, right in found for j in right] == [
        j for j, size in enumerate(dst) if size != 1
    ]


@pytest.mark.parametrize(
    ("heads", "num_ranks", "allowed"), [(4, 2, True), (4, 4, True), (3, 2, False)]
)
def test_heads_are_split_if_the_ranks_divide_them(
    heads: int, num_ranks: int, allowed: bool
) -> None:
    operator = _operator(sample(aten.view.default, T(5, heads * 4), (5, heads, 4)))
    by_heads = Signature((S(1),), (S(1),))
    assert by_heads in signatures(operator)
    layout = Layout(_mesh([num_ranks]), [S(1)])
    assert fits(operator, (layout,), (layout,)) is allowed


def test_a_dim_inside_of_a_flattened_group_is_never_split() -> None:
    found = _ways(sample(aten.view.default, T(4, 6), (24,)))
    assert {s.inputs[0] for s in found} == {B, S(0), P()}


def test_products_have_the_ways_of_the_table() -> None:
    assert _ways(sample(aten.mm.default, T(4, 6), T(6, 8))) == {
        Signature((B, B), (B,)),
        Signature((S(0), B), (S(0),)),
        Signature((S(1), S(0)), (P(),)),
        Signature((B, S(1)), (S(1),)),
        Signature((P(), B), (P(),)),
        Signature((B, P()), (P(),)),
    }


@pytest.mark.parametrize(
    "one",
    [
        sample(aten.relu.default, T(5, 4)),
        sample(aten.mul.Tensor, T(5, 4), T(5, 4)),
        sample(aten.add.Tensor, T(5, 4), 1.0),
        sample(aten.masked_fill.Scalar, T(5, 4), mask(5, 4), -1.0),
        sample(aten._to_copy.default, T(5, 4), dtype=torch.int64),
        sample(aten.amax.default, T(5, 4), (1,)),
        sample(aten.constant_pad_nd.default, T(5, 4), (1, 1), 2.0),
    ],
    ids=lambda one: target_name(one.target),
)
def test_sums_do_not_pass_where_it_is_not_linear(one: Sample) -> None:
    all_partial = (P(),) * len(_operator(one).inputs)
    assert all(s.inputs != all_partial for s in signatures(_operator(one)))


@pytest.mark.parametrize(
    ("one", "dim"),
    [
        (sample(aten.roll.default, T(6, 4), (1,), (0,)), 0),
        (sample(aten.flip.default, T(6, 4), (0,)), 0),
        (sample(aten.slice.Tensor, T(6, 4), 0, 1, 5), 0),
        (sample(aten.cumsum.default, T(6, 4), 0), 0),
        (sample(aten.argmax.default, T(6, 4), 0), 0),
        (sample(aten.sort.default, T(6, 4), 0), 0),
        (sample(aten.topk.default, T(6, 4), 2, 0), 0),
        (sample(aten.max.dim, T(6, 4), 0), 0),
        (sample(aten.std.correction, T(6, 4), (0,)), 0),
    ],
    ids=lambda value: target_name(getattr(value, "target", str)),
)
def test_a_dim_that_is_worked_along_stays_whole(one: Sample, dim: int) -> None:
    assert all(s.inputs[0] != S(dim) for s in signatures(_operator(one)))
    assert any(s.inputs[0] == S(1 - dim) for s in signatures(_operator(one)))


WRONG: tuple[tuple[Sample, tuple[Placement, ...], Placement], ...] = (
    (sample(aten.relu.default, T(5, 4)), (P(),), P()),
    (sample(aten.mul.Tensor, T(5, 4), T(5, 4)), (P(), P()), P()),
    (sample(aten.amax.default, T(5, 4), (1,)), (S(1),), P()),
    (sample(aten.add.Tensor, T(5, 4), T(4)), (P(), B), P()),
    (sample(aten.cumsum.default, T(5, 4), 1), (S(1),), S(1)),
    (sample(aten.mm.default, T(5, 4), T(4, 6)), (S(1), S(0)), B),
    (sample(aten.mm.default, T(5, 4), T(4, 6)), (B, S(1)), S(0)),
)
"""Calls with ways that are none."""


@pytest.mark.parametrize(
    "planted", WRONG, ids=lambda p: f"{target_name(p[0].target)} {p[1:]}"
)
def test_the_check_finds_a_planted_mistake(
    planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, inputs, made = planted
    assert not validate(one).errors
    wrong = Rule(lambda _: (Signature(inputs, (made,)),))
    monkeypatch.setattr(table, "RULES", {one.target: wrong})
    caches = (rule_of, signatures)
    for cached in caches:
        cached.cache_clear()
    found = validate(one).errors
    for cached in caches:
        cached.cache_clear()
    assert found


def _grouped(x: Any, w: Any, ends: Any) -> torch.Tensor:
    rows = zip([0, *ends.tolist()], ends.tolist(), strict=False)
    return torch.cat([x[i:j] @ w[e] for e, (i, j) in enumerate(rows)])


def _grouped_backward(
    x: Any, w: Any, ends: Any, grad: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = list(zip([0, *ends.tolist()], ends.tolist(), strict=False))
    dx = torch.cat([grad[i:j] @ w[e].T for e, (i, j) in enumerate(rows)])
    return dx, torch.stack([x[i:j].T @ grad[i:j] for i, j in rows])


@pytest.mark.parametrize("target", [_grouped, _grouped_backward], ids=target_name)
def test_grouped_products_of_libraries(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward = "_backward" if target is _grouped_backward else ""
    rule = BY_NAME[f"transformers.grouped_mm_fallback{backward}.default"]
    ends = T(3, dtype=torch.int64, kind="given", values=(2, 2, 7))
    grads = (T(7, 6),) if backward else ()
    one = sample(target, T(7, 4), T(3, 4, 6), ends, *grads)
    monkeypatch.setattr(table, "RULES", {target: rule})
    verdict = validate(one)
    assert not verdict.errors
    assert verdict.num_signatures >= 3


def test_letters_of_short_dims_are_left_out() -> None:
    rule = by_letters("b k, k n -> b n", reduction="sum")
    x, w = TensorMeta((1, 4), torch.float64), TensorMeta((4, 6), torch.float64)
    made = TensorMeta((1, 6), torch.float64)
    operator = Operator(aten.mm.default, (Slot(0), Slot(1)), (), (x, w), (made,))
    assert {s.outputs[0] for s in rule.signatures(operator)} == {P(), S(1)}
