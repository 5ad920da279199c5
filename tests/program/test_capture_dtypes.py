"""A step under autocast: dtypes as kernels give them, sums sent as what they are."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placet.placement.layout import part_box, relative
from placet.placement.mesh import Mesh
from placet.placement.placement import B, S
from placet.planner.pins import Pin
from placet.planner.planning import plan
from placet.program.capture import capture, state_tensors
from placet.program.graph import Graph
from placet.program.interpret import call
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from testing.divisions import guided_division
from testing.models.zoo import TINY
from testing.planned import run_rank
from testing.ranks import run_threads

X = torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(1))


def squares(model: nn.Module, batch: Any) -> Tensor:
    found: Tensor = model(batch[0]).float().square().mean()
    return found


class Mlp(nn.Module):
    """Layers between which values are in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(75, 32), nn.Linear(32, 6)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.norm(F.gelu(self.up(x.flatten(1)))))
        return found


def conv(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Flatten(), nn.Linear(72, 4))


MODELS = {
    "layer norm": Mlp,
    "group norm": lambda: conv(nn.GroupNorm(2, 8)),
    "instance norm": lambda: conv(nn.InstanceNorm2d(8, affine=True)),
    "batch norm": lambda: conv(nn.BatchNorm2d(8)),
}


def assert_dtypes(model: nn.Module, batch: Any, graph: Graph) -> None:
    """Every tensor is what the graph says."""
    states = state_tensors(model, graph)
    values = {s.tensor: states[s.name].clone() for s in graph.states}
    values |= dict(zip(graph.inputs, batch, strict=True))
    for op in graph.ops:
        made = call(op, values)
        for name, tensor in zip(op.outputs, made, strict=True):
            if name is not None:
                assert tensor.dtype == graph.tensors[name].dtype, op
                assert tuple(tensor.shape) == graph.tensors[name].shape, op
                values[name] = tensor


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_dtypes_are_those_of_kernels(name: str, ranks: int) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    captured = capture(model, (X,), squares, precision="bf16")
    assert_dtypes(model, (X,), normalise(captured.graph, ranks))


@pytest.mark.prove
@pytest.mark.parametrize("name", TINY)
def test_dtypes_of_models_are_those_of_kernels(name: str) -> None:
    torch.manual_seed(0)
    model, batch = TINY[name].model_fn(), TINY[name].batch_fn()
    captured = capture(model, batch, TINY[name].loss, precision="bf16")
    graph = normalise(captured.graph, 2)
    assert_dtypes(model, captured.flatten(batch), graph)


@pytest.mark.parametrize(
    "guide",
    [{"batch": S(0)}, {r"up\.|norm": S(0), r"down\.weight": S(1)}],
)
def test_a_divided_step_is_one_devices_under_autocast(guide: Any) -> None:
    torch.manual_seed(0)
    model = Mlp()
    captured = capture(model, (X,), squares, precision="bf16")
    graph = normalise(captured.graph, 2)
    division = guided_division(graph, Mesh("a=2"), [guide])
    refined = refine(graph, division, name="autocast")
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    found = run_threads(2, run_rank, graph, division, refined, states, [X])
    eager = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = squares(eager, (X,))
    loss.backward()
    for rank, result in enumerate(found):
        torch.testing.assert_close(result.loss, loss.detach(), rtol=1e-2, atol=1e-3)
        for name, parameter in eager.named_parameters():
            assert parameter.grad is not None
            shape, layout = tuple(parameter.shape), division.homes[name]
            part = part_box(shape, layout, rank)
            want = parameter.grad[relative(part, tuple((0, n) for n in shape))]
            near = 2e-2 * float(want.abs().max())
            torch.testing.assert_close(result.news[name], want, rtol=2e-2, atol=near)


def reduced_bytes(precision: Any) -> dict[torch.dtype, int]:
    """What a rank receives of each dtype, by a plan with all parameters whole."""
    model, batch = Mlp(), (X.repeat(200, 1, 1, 1),)
    found = plan(
        model,
        batch,
        squares,
        mesh=Mesh("a=2"),
        objective="bytes",
        precision=precision,
        pins=[Pin("*", home=B)],
        time_limit_seconds=10,
    )
    graph = normalise(capture(model, batch, squares, precision=precision).graph, 2)
    program = refine(graph, found.division, name="reduced").program
    received: dict[torch.dtype, int] = {}
    for boxing in program.boxings():
        num_bytes = program.boxing_plan(boxing).received_bytes(0)
        dtype = program.tensors[boxing.inputs[0]].dtype
        received[dtype] = received.get(dtype, 0) + num_bytes
    assert found.cost == pytest.approx(sum(received.values()), abs=1)
    return received


def test_sums_are_priced_and_sent_in_the_dtype_that_they_have() -> None:
    weights, norm = 75 * 32 + 32 * 6 + 32 + 6, 2 * 32
    assert reduced_bytes("fp32") == {torch.float32: 4 * (weights + norm + 1)}
    # Products are in bfloat16 and so are their gradients; those of norms are not.
    assert reduced_bytes("bf16") == {
        torch.bfloat16: 2 * weights,
        torch.float32: 4 * (norm + 1),
    }
