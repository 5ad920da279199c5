"""Captured steps beside eager ones: checkpoint regions, known values, refusals."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placet.errors import CaptureError
from placet.program.capture import Captured, capture, state_tensors
from placet.program.interpret import interpret
from placet.program.normalise.normalise import normalise

aten = torch.ops.aten
SIN = aten.sin.default


class Block(nn.Module):
    """A layer with a sine, so that its forward can be counted in a graph."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 4)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.dropout(torch.sin(self.up(x)), self.dropout))
        return x + y


class Blocks(nn.Module):
    """Two blocks, each a checkpoint region if so wished."""

    def __init__(self, *, again: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x.square().mean()


def _run(captured: Captured, model: nn.Module, x: Tensor, ranks: int) -> list[Tensor]:
    """The loss, then the gradients in the order of the parameters."""
    graph = captured.graph if ranks == 0 else normalise(captured.graph, ranks)
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    found = interpret(graph, states, captured.flatten(x))
    names = [graph.loss, *(s.new for s in graph.states if s.is_parameter)]
    return [found[name] for name in names if name is not None]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("ranks", [0, 1, 4])
def test_captured_is_the_eager_step(again: bool, ranks: int) -> None:
    torch.manual_seed(1)
    model, x = Blocks(again=again).double(), torch.randn(3, 4, dtype=torch.float64)
    found = _run(capture(model, x), model, x, ranks)
    eager = copy.deepcopy(model)
    loss = eager(x)
    loss.backward()
    expected = [loss.detach(), *(p.grad for p in eager.parameters())]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("again", "times"), [(False, 0), (True, 2)])
def test_checkpoint_regions_are_computed_again(again: bool, times: int) -> None:
    graph = capture(Blocks(again=again), torch.randn(3, 4)).graph
    phases = [op.phase for op in graph.ops if op.target is SIN]
    assert phases.count("forward") == 2
    assert phases.count("backward") == times
    modules = {op.module for op in graph.ops if op.target is aten.addmm.default}
    assert modules == {f"blocks.{i}.{n}" for i in (0, 1) for n in ("up", "down")}


def test_a_region_computed_again_draws_the_same_numbers() -> None:
    torch.manual_seed(2)
    plain = Blocks(again=False, dropout=0.5).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    again = Blocks(again=True, dropout=0.5).double()
    again.load_state_dict(plain.state_dict())
    found = []
    for model in (plain, again):
        torch.manual_seed(3)
        found.append(_run(capture(model, x), model, x, 0))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


def test_ops_know_their_line() -> None:
    graph = capture(Blocks(again=True), torch.randn(3, 4)).graph
    lines = {op.line for op in graph.ops if op.target is SIN}
    first = Block.forward.__code__.co_firstlineno
    assert lines == {f"test_capture.py:{first + 1}, in forward"}


class Decides(nn.Module):
    """A forward that asks for the value of a tensor."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.known = known

    def forward(self, x: Tensor) -> Tensor:
        asked = torch.arange(4).diff() if self.known else x
        factor = 2.0 if (asked == 1).all() else 3.0
        y: Tensor = self.layer(x)
        return y.mean() * factor


def test_a_decision_by_python_values_is_made() -> None:
    model, x = Decides(known=True), torch.randn(3, 4)
    captured = capture(model, x)
    torch.testing.assert_close(_run(captured, model, x, 0)[0], model(x).detach())


def test_a_decision_by_the_batch_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"test_capture\.py:\d+"):
        capture(Decides(known=False), torch.randn(3, 4))
