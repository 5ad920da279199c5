"""Ways to divide convolutions and attention, over pairs of axes and in known forms."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placet.placement.layout import Layout, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S, Split
from placet.program.rules import windows
from placet.program.rules.table import fits, signatures
from placet.program.rules.windows import Window
from placet.program.signature import Signature
from testing.rule_samples import attention, convolution, pooling
from testing.rule_samples.forms import Sample, T, sample
from testing.validate_rules import check, validate, whole

aten = torch.ops.aten
SQUARE = Mesh("x=2, y=2")
ONE, NO = (1, 1), (0, 0)


def _conv(x: T, w: T, stride: tuple[int, int], padding: tuple[int, int]) -> Sample:
    rest = (stride, padding, ONE, False, NO, 1)
    return sample(aten.convolution.default, x, w, None, *rest)


PAIRED = (convolution.SAMPLES[0], convolution.SAMPLES[2], *attention.SAMPLES[:6])


@pytest.mark.parametrize("one", PAIRED, ids=range(len(PAIRED)))
def test_all_pairs_of_ways_are_right(one: Sample) -> None:
    case = whole(one)
    pairs = product(signatures(case.operator), repeat=2)
    ran = sum(check(case, SQUARE, picked) for picked in pairs)
    assert ran > len(signatures(case.operator))


def test_convolution_has_the_ways_of_the_table() -> None:
    operator = whole(_conv(T(4, 6, 8, 8), T(4, 6, 3, 3), ONE, ONE)).operator
    assert set(signatures(operator)) == {
        Signature((B, B), (B,)),
        Signature((S(0), B), (S(0),)),
        Signature((B, S(0)), (S(1),)),
        Signature((S(1), S(1)), (P(),)),
        Signature((S(2, (1, 1)), B), (S(2),)),
        Signature((S(3, (1, 1)), B), (S(3),)),
        Signature((P(), B), (P(),)),
        Signature((B, P()), (P(),)),
    }


def test_convolution_backward_has_the_ways_of_the_table() -> None:
    operator = whole(convolution.SAMPLES[2]).operator
    halo = Split(2, (1, 1), adjoint=True)
    for wanted in (
        Signature((S(0), S(0), B), (S(0), P(), P())),
        Signature((S(1), B, S(0)), (P(), S(0), S(0))),
        Signature((B, S(1), S(1)), (S(1), S(1), B)),
        Signature((S(2), S(2, (1, 1)), B), (halo, P(), P())),
    ):
        assert wanted in signatures(operator)


def test_image_is_whole_where_parts_would_not_match() -> None:
    operator = whole(_conv(T(2, 3, 9, 8), T(4, 3, 3, 3), (2, 2), ONE)).operator
    placed = [p for s in signatures(operator) for p in s.outputs]
    dims = {p.dim for p in placed if isinstance(p, Split)}
    assert dims == {0, 1, 3}  # 9 rows become 5, 8 columns become 4


def test_groups_are_not_cut() -> None:
    rest = (ONE, ONE, ONE, False, NO, 3)
    one = sample(aten.convolution.default, T(2, 6, 4, 4), T(6, 2, 3, 3), None, *rest)
    operator = whole(one).operator
    by_groups = Signature((S(1), S(0)), (S(1),))
    assert by_groups in signatures(operator)
    three, two = Mesh("x=3"), Mesh("x=2")
    for mesh, allowed in ((three, True), (two, False)):
        inputs = tuple(Layout(mesh, [p]) for p in by_groups.inputs)
        outputs = tuple(Layout(mesh, [p]) for p in by_groups.outputs)
        assert fits(operator, inputs, outputs) is allowed


def test_check_finds_a_halo_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    one = sample(
        *(aten.max_pool2d_with_indices.default, T(2, 2, 12, 4), (3, 1), (1, 1)),
        *((1, 0), ONE, False),
    )
    assert not validate(one).errors
    reads = Window.reads

    def short(window: Window, start: int, stop: int) -> tuple[int, int]:
        first, last = reads(window, start, stop)
        return first + 1, last + 1

    monkeypatch.setattr(windows.Window, "reads", short)
    assert validate(one).errors


@given(
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 2),
    size_out=st.integers(2, 12),
    num_ranks=st.integers(2, 4),
)
@settings(max_examples=200, deadline=None)
def test_halos_hold_all_that_a_window_reads(
    kernel: int, stride: int, padding: int, dilation: int, size_out: int, num_ranks: int
) -> None:
    size_in = stride * size_out
    window = Window(size_in, size_out, kernel, stride, padding, dilation)
    mesh = Mesh(f"x={num_ranks}")
    src, dst = Layout(mesh, [S(0, window.halo)]), Layout(mesh, [S(0)])
    if not window.cuts_match(src, dst, 0):
        return
    for rank in mesh.ranks:
        ((start, stop),) = part_box((size_out,), dst, rank)
        ((first, last),) = part_box((size_in,), src, rank)
        if start == stop:
            continue
        reads = window.reads(start, stop)
        assert first <= max(0, reads[0])
        assert last >= min(size_in, reads[1])


@pytest.mark.parametrize("one", pooling.SAMPLES[:12:2], ids=range(6))
def test_pooling_is_right_by_all_pairs(one: Sample) -> None:
    case = whole(one)
    pairs = product(signatures(case.operator), repeat=2)
    assert sum(check(case, SQUARE, picked) for picked in pairs) > 3
