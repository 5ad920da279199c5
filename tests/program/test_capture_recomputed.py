"""Checkpoint regions stay: computed again in what runs, and less is held for it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placet.placement.layout import replicated
from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.program.capture import capture, state_tensors
from placet.program.graph import Graph
from placet.program.interpret import interpret
from placet.program.liveness import peak_bytes
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.run.planned import PlannedStep
from placet.torch_private.storages import LiveStorages
from placet.wire.twin import Twin
from testing.divisions import guided_division
from testing.planned import assert_same_as_one_device

aten = torch.ops.aten
X = torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(1))


class Triple(torch.autograd.Function):
    """Twice its input; its backward says three times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 3 * grads[0]


class Block(nn.Module):
    """Attention and a wide layer, with a sine that can be counted."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 48)
        self.up, self.down = nn.Linear(16, 128), nn.Linear(128, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).view(4, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        wide = Triple.apply(torch.sin(self.up(x)))  # type: ignore[no-untyped-call]
        found: Tensor = x + self.down(F.gelu(wide))
        return found


class Blocks(nn.Module):
    """Three of them; checkpoint regions if so wished."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x.square().sum() / 1024


def graph_of(again: bool) -> tuple[Graph, nn.Module]:
    torch.manual_seed(0)
    model = Blocks(again)
    return normalise(capture(model, X).graph, 2), model


def test_less_is_held_where_regions_are_computed_again() -> None:
    mesh, peaks, ran = Mesh("a=2"), {}, {}
    for again in (False, True):
        graph, _ = graph_of(again)
        division = guided_division(graph, mesh, [{"batch": S(0)}])
        refined = refine(graph, division, name="again")
        peaks[again] = peak_bytes(graph, division, refined, 0).num_bytes
        ran[again] = [op.target for op in graph.ops].count(aten.sin.default)
        bodies = {name for body in refined.bodies.values() for name in body}
        assert bodies == {op.name for op in graph.ops}
    assert ran == {False: 3, True: 6}
    # A block keeps its input only; of three, one is whole in memory at a time.
    assert peaks[True] < 0.75 * peaks[False]


def measured_peak(again: bool) -> int:
    """What one rank holds at its peak, in a step that runs."""
    _, model = graph_of(again)
    mesh, graph = Mesh("a=1"), normalise(capture(model, X).graph, 1)
    division = guided_division(graph, mesh, [{}])
    refined = refine(graph, division, name="measured")
    step = PlannedStep(graph, division, refined, Twin(1).wire(0))
    states = dict(state_tensors(model, graph))
    assert all(division.homes[name] == replicated(mesh) for name in states)
    with LiveStorages() as watch, torch.no_grad():
        step(states, [X])
    return watch.peak_bytes


@pytest.mark.prove
def test_an_executed_step_holds_less() -> None:
    assert measured_peak(again=True) < 0.7 * measured_peak(again=False)


@pytest.mark.parametrize("guide", [{"batch": S(0)}, {r"up\.": S(0)}])
def test_regions_and_functions_of_ones_own_are_one_devices(guide: Any) -> None:
    torch.manual_seed(0)
    model, x = Blocks(again=True).double(), X.double()
    captured = capture(model, x)
    graph = normalise(captured.graph, 2)
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    division = guided_division(graph, Mesh("a=2"), [guide])
    assert_same_as_one_device(captured, graph, division, states, x)
    model(x).backward()
    found = interpret(captured.graph, states, [x])
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for state in captured.graph.states:
        assert state.new is not None
        torch.testing.assert_close(found[state.new], gradients[state.name])


def test_attention_without_dropout_is_computed_again() -> None:
    graph, _ = graph_of(again=True)
    attention = [op for op in graph.ops if "flash_attention" in str(op.target)]
    forward = [op for op in attention if "backward" not in str(op.target)]
    assert [op.phase for op in forward].count("backward") == 3
