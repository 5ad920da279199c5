"""Functions of plans: on the whole they are torch's, and parts of them add up."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from placet.program.functions.batch_norm import (
    batch_moments,
    batch_norm_apply,
    batch_norm_grad_sums,
    batch_norm_gradient,
    batch_sums,
    moved_average,
    row_of,
)
from placet.program.functions.constant import constant
from placet.program.functions.embedding import embedding_part, embedding_part_gradient
from placet.program.functions.halo_convolution import (
    halo_convolution,
    halo_convolution_backward,
)
from placet.program.functions.halo_pooling import (
    halo_avg_pool,
    halo_avg_pool_backward,
    halo_max_pool,
    halo_max_pool_backward,
)
from placet.program.functions.linear import contract, linear
from placet.program.functions.loss import cross_entropy_gradient, exp_sum, target_logit
from placet.program.functions.mean_loss import gradient_of_mean, term_of_mean

aten = torch.ops.aten
F64 = torch.float64
close = torch.testing.assert_close


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64)


def test_batch_norm_of_parts_is_that_of_the_whole() -> None:
    x, grad, weight, bias = numbers(6, 3, 4), numbers(6, 3, 4, seed=1), *numbers(2, 3)
    mean, var = torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    made = F.batch_norm(leaves[0], mean, var, *leaves[1:], True, 0.1, 1e-5)
    expected = torch.autograd.grad(made, leaves, grad)
    parts = x.split([4, 2]), grad.split([4, 2])
    moments = batch_moments(sum(map(batch_sums, parts[0])), 24.0)  # type: ignore[arg-type]
    sums = sum(
        batch_norm_grad_sums(g, p, moments, 1e-5) for p, g in zip(*parts, strict=True)
    )
    assert isinstance(sums, Tensor)
    found = [batch_norm_apply(p, moments, weight, bias, 1e-5) for p in parts[0]]
    back = [
        batch_norm_gradient(g, p, moments, sums, weight, 24.0, 1e-5)
        for p, g in zip(*parts, strict=True)
    ]
    close(torch.cat(found), made.detach())
    close(torch.cat(back), expected[0])
    close(row_of(sums, 1, F64), expected[1])
    close(row_of(sums, 0, F64), expected[2])
    close(moved_average(torch.zeros(3, dtype=F64), moments, 0, 0.1, 0.1), mean)
    gain = 0.1 * 24 / 23
    close(moved_average(torch.ones(3, dtype=F64), moments, 1, gain, 0.1), var)


@pytest.mark.parametrize("padding", [-1, 2, 5])
def test_embedding_of_parts_of_the_table(padding: int) -> None:
    table, index = numbers(7, 3), torch.tensor([[0, 5, 2], [6, 2, 3]])
    grad = numbers(2, 3, 3, seed=1)
    parts = [(table[:3], 0), (table[3:], 3)]
    found = [embedding_part(part, index, offset) for part, offset in parts]
    close(found[0] + found[1], F.embedding(index, table))
    back = [
        embedding_part_gradient(grad, index, len(part), padding, offset)
        for part, offset in parts
    ]
    expected = aten.embedding_dense_backward(grad, index, 7, padding, False)
    close(torch.cat(back), expected)


def test_cross_entropy_of_parts_of_the_vocabulary() -> None:
    logits, target = numbers(4, 7), torch.tensor([0, 6, -1, 3])
    scores = logits.clone().requires_grad_()
    loss = F.cross_entropy(scores, target, ignore_index=-1, reduction="sum")
    (expected,) = torch.autograd.grad(loss, scores)
    parts = [(logits[:, :3], 0), (logits[:, 3:], 3)]
    peak = torch.stack([part.amax(-1) for part, _ in parts]).amax(0)
    total = torch.stack([exp_sum(part, peak) for part, _ in parts]).sum(0)
    hits = [target_logit(part, target, -1, offset) for part, offset in parts]
    rows = (total.log() + peak - hits[0] - hits[1]).masked_fill(target == -1, 0)
    close(rows.sum(), loss.detach())
    scale = torch.tensor(1.0, dtype=F64)
    back = [
        cross_entropy_gradient(part, target, peak, total, scale, -1, offset)
        for part, offset in parts
    ]
    close(torch.cat(back, -1), expected)


def test_products_over_all_leading_dims() -> None:
    x, w, bias, grad = numbers(2, 3, 4), numbers(4, 5), numbers(5), numbers(2, 3, 5)
    close(linear(x, w, bias), F.linear(x, w.t(), bias))
    close(linear(x.transpose(0, 1), w), x.transpose(0, 1) @ w)
    close(contract(x, grad), torch.einsum("abi,abj->ij", x, grad))
    halves = contract(x[:, :1], grad[:, :1]) + contract(x[:, 1:], grad[:, 1:])
    close(halves, contract(x, grad))


CONV = ([1, 1], [0, 1], [1, 1], False, [0, 0], 1)
"""Stride to groups; rows are padded by `pads`, columns by the convolution."""


def test_convolution_of_rows_with_a_halo() -> None:
    x, weight, bias = numbers(2, 3, 8, 5), numbers(4, 3, 3, 3), numbers(4)
    grad = numbers(2, 4, 8, 5, seed=1)
    whole = F.conv2d(x, weight, bias, padding=1)
    # Rows 0 to 4 and 3 to 7: each has one row more than it makes.
    parts = [(x[:, :, :5], (0, 0, 1, 0)), (x[:, :, 3:], (0, 0, 0, 1))]
    made = [halo_convolution(part, weight, bias, pads, *CONV) for part, pads in parts]
    close(torch.cat(made, 2), whole)
    back = [
        halo_convolution_backward(
            grad[:, :, 4 * i : 4 * i + 4],
            part,
            weight,
            pads,
            *([4], *CONV, [True, True, True]),
        )
        for i, (part, pads) in enumerate(parts)
    ]
    expected = aten.convolution_backward(
        grad, x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
    )
    total = torch.zeros_like(x)
    assert back[0][0] is not None
    assert back[1][0] is not None
    total[:, :, :5] += back[0][0]
    total[:, :, 3:] += back[1][0]
    close(total, expected[0])
    for first, second, both in zip(back[0][1:], back[1][1:], expected[1:], strict=True):
        assert first is not None
        assert second is not None
        close(first + second, both)


def test_pooling_of_rows_with_a_halo() -> None:
    x, grad = numbers(1, 2, 8, 4), numbers(1, 2, 8, 2, seed=1)
    pool = ([3, 2], [1, 2], [0, 0], [1, 1], False)
    expected, index = aten.max_pool2d_with_indices(
        x, [3, 2], [1, 2], [1, 0], [1, 1], False
    )
    parts = [(x[:, :, :5], (0, 0, 1, 0), (-1, 0), (0, 0))]
    parts.append((x[:, :, 3:], (0, 0, 0, 1), (3, 0), (3, 0)))
    total = torch.zeros_like(x)
    for i, (part, pads, padded, first) in enumerate(parts):
        rows = slice(4 * i, 4 * i + 4)
        made, at = halo_max_pool(part, pads, padded, 4, *pool)
        close(made, expected[:, :, rows])
        assert torch.equal(at, index[:, :, rows])
        back = halo_max_pool_backward(grad[:, :, rows], part, at, first, 4)
        total[:, :, first[0] : first[0] + 5] += back
    wanted = aten.max_pool2d_with_indices_backward(
        grad, x, [3, 2], [1, 2], [1, 0], [1, 1], False, index
    )
    close(total, wanted)


def test_average_pooling_of_rows_with_a_halo() -> None:
    x, grad = numbers(1, 2, 8, 4), numbers(1, 2, 8, 4, seed=1)
    mean = ([3, 1], [1, 1], [0, 0], False, True, None)
    whole = F.avg_pool2d(x, [3, 1], 1, [1, 0])
    expected = aten.avg_pool2d_backward(
        grad, x, [3, 1], [1, 1], [1, 0], False, True, None
    )
    total = torch.zeros_like(x)
    for i, pads in enumerate([(0, 0, 1, 0), (0, 0, 0, 1)]):
        here, rows = slice(3 * i, 3 * i + 5), slice(4 * i, 4 * i + 4)
        part = x[:, :, here]
        made = halo_avg_pool(aten.avg_pool2d.default, part, pads, *mean)
        close(made, whole[:, :, rows])
        total[:, :, here] += halo_avg_pool_backward(
            aten.avg_pool2d_backward.default, grad[:, :, rows], part, pads, *mean
        )
    close(total, expected)


def test_terms_of_a_mean_add_up() -> None:
    x, y = numbers(6, 2), numbers(6, 2, seed=1)
    leaf = x.clone().requires_grad_()
    loss = F.mse_loss(leaf, y)
    (expected,) = torch.autograd.grad(loss, leaf)
    parts = [(x[:4], y[:4]), (x[4:], y[4:])]
    terms = [term_of_mean(aten.mse_loss.default, 12, a, b, 2) for a, b in parts]
    close(terms[0] + terms[1], loss.detach())
    one = torch.tensor(1.0, dtype=F64)
    back = [
        gradient_of_mean(aten.mse_loss_backward.default, 12, one, a, b, 2)
        for a, b in parts
    ]
    close(torch.cat(back), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_constants_have_shape_and_dtype(dtype: torch.dtype) -> None:
    found = constant((1, 0, 1, 1, 0, 1), (2, 3), dtype)
    assert torch.equal(found, torch.tensor([[1, 0, 1], [1, 0, 1]], dtype=dtype))
    assert constant((), (0, 3), dtype).shape == (0, 3)
