"""Normalised steps compute what the eager ones do, whatever the model's shapes."""

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placet.program.capture import capture, state_tensors
from placet.program.functions.batch_norm import (
    batch_moments,
    batch_norm_apply,
    batch_norm_grad_sums,
    batch_norm_gradient,
    batch_sums,
)
from placet.program.interpret import interpret
from placet.program.normalise.normalise import normalise

WORDS = 12
TOKENS = torch.arange(12).view(2, 6) * 5 % WORDS
TARGETS = torch.arange(12) * 7 % WORDS


class Words(nn.Module):
    """Scores (batch, sequence, words) of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4)
        self.scores = nn.Linear(4, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.scores(self.table(x)))


def _flat(model: nn.Module, x: Tensor) -> Tensor:
    """Scores of all rows."""
    return cast(Tensor, model(x).view(-1, WORDS))


def _whole_targets(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(_flat(model, batch[0]), batch[1])


def _two_of_one(model: nn.Module, batch: Any) -> Tensor:
    rows = F.log_softmax(_flat(model, batch[0]), -1)
    with torch.no_grad():
        other = F.nll_loss(rows, (batch[1] + 1) % WORDS)
    return F.nll_loss(rows, batch[1]) + other


def _numbers_beside_rows(model: nn.Module, batch: Any) -> Tensor:
    return torch.mean(_flat(model, batch[0]) * batch[0].view(-1))


def _largest(model: nn.Module, batch: Any) -> Tensor:
    return _flat(model, batch[0]).amax(())


def _sum_of_none(model: nn.Module, batch: Any) -> Tensor:
    return torch.sum(_flat(model, batch[0]), None)


def _counts(model: nn.Module, batch: Any) -> Tensor:
    positive = (_flat(model, batch[0]) > 0).sum(0)
    return (positive // 2).float().mean() * _flat(model, batch[0]).mean()


LOSSES = [
    _whole_targets,
    _two_of_one,
    _numbers_beside_rows,
    _largest,
    _sum_of_none,
    _counts,
]


def _same_as_eager(
    model: nn.Module, batch: Any, loss: Callable[[nn.Module, Any], Any], ranks: int
) -> None:
    captured = capture(model, batch, loss)
    graph = normalise(captured.graph, ranks)
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    found = interpret(graph, states, captured.flatten(batch))
    eager = copy.deepcopy(model)
    expected = loss(eager, batch)
    expected.backward()
    assert graph.loss is not None
    torch.testing.assert_close(found[graph.loss], expected.detach())
    gradients = {name: p.grad for name, p in eager.named_parameters()}
    for state in graph.states:
        if state.is_parameter and state.new is not None:
            torch.testing.assert_close(found[state.new], gradients[state.name])
    for name, value in found.items():
        assert graph.tensors[name].dtype == value.dtype, name


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_flattened_rows(loss: Callable[[nn.Module, Any], Tensor], ranks: int) -> None:
    torch.manual_seed(3)
    _same_as_eager(Words(), (TOKENS, TARGETS), loss, ranks)


def test_two_losses_of_one_log_softmax_without_backward() -> None:
    model, batch = Words(), (TOKENS, TARGETS)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows = F.log_softmax(_flat(model, batch[0]), -1)
        return F.nll_loss(rows, batch[1]) + F.nll_loss(rows, (batch[1] + 1) % WORDS)

    captured = capture(model, batch, loss, trains=False)
    graph = normalise(captured.graph, 4)
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    found = interpret(graph, states, captured.flatten(batch))
    assert graph.loss is not None
    torch.testing.assert_close(found[graph.loss], loss(model, batch).detach())


def test_batch_norm_of_half_precision_rounds_once() -> None:
    torch.manual_seed(3)
    x = (torch.randn(64, 3, 4, 4) + 8).bfloat16()
    grad, weight, bias = torch.randn(x.shape).bfloat16(), torch.rand(3), torch.rand(3)
    precise = x.double().requires_grad_()
    scale = (weight.double(), bias.double())
    expected = F.batch_norm(precise, None, None, *scale, training=True)
    (gradient,) = torch.autograd.grad(expected, precise, grad.double())
    moments = batch_moments(batch_sums(x), 1024.0)
    made = batch_norm_apply(x, moments, weight, bias, 1e-5)
    sums = batch_norm_grad_sums(grad, x, moments, 1e-5)
    back = batch_norm_gradient(grad, x, moments, sums, weight, 1024.0, 1e-5)
    torch.testing.assert_close(made, expected.bfloat16(), rtol=2**-8, atol=1e-4)
    torch.testing.assert_close(back, gradient.bfloat16(), rtol=2**-8, atol=1e-4)
