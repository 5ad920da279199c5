"""Operators that change nothing go; dense copies stay where strides matter."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placet.program.capture import capture, state_tensors
from placet.program.graph import Graph
from placet.program.interpret import interpret
from placet.program.normalise.clean import clean

aten = torch.ops.aten
X = torch.arange(24.0, dtype=torch.float64).view(6, 4) / 9


class Layer(nn.Module):
    """A layer, then a function of its result."""

    def __init__(self, after: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.float64)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.after(self.layer(x)).square().mean()
        return found


@torch.library.custom_op("placet_tests::dense", mutates_args=())
def dense(x: Tensor) -> Tensor:
    """Somebody's kernel, which reads memory in order."""
    assert x.is_contiguous(), "a kernel of dense tensors was given others"
    return x * 2


@dense.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


dense.register_autograd(lambda _, grad: grad * 2)


def as_complex(y: Tensor) -> Tensor:
    pairs = y.view(-1, 2, 2).transpose(1, 2).contiguous()
    return torch.view_as_real(torch.view_as_complex(pairs) * 1j)


NOTHING = [
    (lambda y: y.clone().detach().requires_grad_() + y, aten.clone.default),
    (lambda y: y.view(6, 4) + y.expand(6, 4), None),
    (lambda y: y.to(torch.float64)[:, 0:4], aten.slice.Tensor),
    (lambda y: y.t().t(), None),
    (lambda y: y.view(3, 8).view(24).view(2, 12), None),
]
STRIDES = [as_complex, lambda y: dense(y.t().contiguous())]


def same(model: nn.Module, graph: Graph) -> None:
    """A graph gives the eager loss and gradient."""
    found = interpret(graph, state_tensors(model, graph), [X])
    loss = model(X)
    loss.backward()
    assert graph.loss is not None
    torch.testing.assert_close(found[graph.loss], loss.detach())
    parameters = dict(model.named_parameters())
    for state in graph.states:
        assert state.new is not None
        torch.testing.assert_close(found[state.new], parameters[state.name].grad)


@pytest.mark.parametrize(("after", "gone"), NOTHING)
def test_what_changes_nothing_goes(after: Any, gone: Any) -> None:
    model = Layer(after)
    before = capture(model, X).graph
    graph = clean(before)
    assert len(graph.ops) < len(before.ops)
    assert gone not in {op.target for op in graph.ops}
    assert clean(graph) == graph
    same(model, graph)


def test_views_of_views_are_one() -> None:
    graph = clean(capture(Layer(NOTHING[-1][0]), X).graph)
    forward = [op for op in graph.ops if op.phase == "forward"]
    assert [op.target for op in forward].count(aten.view.default) == 1


@pytest.mark.parametrize("after", STRIDES)
def test_dense_copies_stay_where_strides_matter(after: Any) -> None:
    model = Layer(after)
    graph = clean(capture(model, X).graph)
    assert aten.clone.default in {op.target for op in graph.ops}
    same(model, graph)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recurrent_layers_are_right_and_can_be_divided(precision: Any) -> None:
    model = nn.LSTM(4, 3, batch_first=True)
    x = X.float().view(2, 3, 4)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = model(x)[0].float().square().mean()
        return found

    captured = capture(model, x, loss, precision=precision)
    graph = clean(captured.graph)
    assert not any("mkldnn" in str(op.target) for op in graph.ops)
    assert torch.backends.mkldnn.enabled
    found = interpret(graph, state_tensors(model, graph), [x])
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        expected = loss(model, x)
    expected.backward()
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    for state in graph.states:
        assert state.new is not None
        grad = dict(model.named_parameters())[state.name].grad
        assert grad is not None
        scale = float(grad.abs().max())
        torch.testing.assert_close(
            found[state.new], grad, atol=tolerance * scale, rtol=tolerance
        )
