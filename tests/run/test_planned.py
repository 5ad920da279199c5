"""A divided step gives one device's loss, gradients and buffers, with its own bytes."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.program.capture import Captured, capture, state_tensors
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from testing.divisions import Guide, gathered_again, guided_division
from testing.models.example import Example, in_float64
from testing.models.zoo import TINY, class_loss
from testing.planned import assert_same_as_one_device, random_division

Case = tuple[Captured, dict[str, Tensor], Any]
LINE = pytest.param("a=2", marks=pytest.mark.prove)
"""Grids do all that lines do, and are the quick ones."""

MESHES = ("a=1", "a=2", "a=3", "a=2, b=2", "a=2, b=3")


class Scaled(torch.autograd.Function):
    """Its backward is its own: three times too much."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 6 * grads[0]


class Peculiar(nn.Module):
    """A frozen parameter, a function with its own backward, a checkpoint region."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 10), nn.Linear(10, 4)
        self.shift = nn.Parameter(torch.ones(10), requires_grad=False)

    def _middle(self, x: Tensor) -> Tensor:
        return torch.sin(self.first(x)) + self.shift

    def forward(self, x: Tensor) -> Tensor:
        made = checkpoint(self._middle, x, use_reentrant=False)
        scaled = Scaled.apply(made)  # type: ignore[no-untyped-call]
        return cast(Tensor, self.last(scaled))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 5))


def _classes(*shape: int) -> Callable[[], Any]:
    """Uneven rows of 8 numbers, each with one of 5 classes."""
    return lambda: (torch.randn(*shape, 8), torch.randint(5, shape))


def _squares(model: nn.Module, batch: Any) -> Tensor:
    difference = model(batch[0]) - batch[1]
    return cast(Tensor, (difference * difference).sum() / difference.numel())


def _pairs(width: int, made: int) -> Callable[[], Any]:
    return lambda: (torch.randn(7, width), torch.randn(7, made))


CASES = dict(TINY) | {
    example.name: example
    for example in (
        Example("uneven MLP", _mlp, _classes(7), class_loss),
        Example("3-d MLP", _mlp, _classes(3, 5), class_loss),
        Example("peculiar", Peculiar, _pairs(6, 4), _squares),
        Example("regression", _mlp, _pairs(8, 5), _squares),
    )
}


@cache
def case(name: str) -> Case:
    """A captured model, its states and a batch, in float64."""
    torch.manual_seed(0)
    model, batch = in_float64(CASES[name])
    captured = capture(model, batch, CASES[name].loss)
    states = state_tensors(model, captured.graph)
    return captured, {n: t.clone() for n, t in states.items()}, batch


def check(name: str, mesh: Mesh, divide: Callable[[Graph], Division]) -> int:
    """Compare with one device; gives the bytes that rank 0 receives."""
    captured, states, batch = case(name)
    graph = normalise(captured.graph, mesh.num_ranks)
    refined = assert_same_as_one_device(captured, graph, divide(graph), states, batch)
    return refined.program.received_bytes(0)


def at_home(graph: Graph, mesh: Mesh) -> dict[str, Layout]:
    """Every parameter cut along its first dim, over all axes."""
    cut = Layout(mesh, [S(0)] * len(mesh.axes))
    return {s.name: cut for s in graph.states if s.is_parameter}


def num_bytes(name: str) -> int:
    """Of all parameters of a case."""
    graph = case(name)[0].graph
    return sum(graph.tensors[s.tensor].num_bytes for s in graph.states if s.new)


@pytest.mark.parametrize("mesh", [LINE, "a=2, b=2"])
@pytest.mark.parametrize("name", CASES)
def test_random_division(name: str, mesh: str) -> None:
    placed = Mesh(mesh)
    check(name, placed, lambda graph: random_division(graph, placed, seed=1))


@pytest.mark.parametrize("mesh", MESHES)
def test_random_divisions_of_uneven_parts(mesh: str) -> None:
    placed = Mesh(mesh)
    for name in ("uneven MLP", "3-d MLP"):
        for seed in range(2):
            check(name, placed, partial(random_division, mesh=placed, seed=seed))


@pytest.mark.prove
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CASES)
def test_many_random_divisions(name: str, mesh: str) -> None:
    placed = Mesh(mesh)
    for seed in range(2, 14):

        def divide(graph: Graph, seed: int = seed) -> Division:
            found = random_division(graph, placed, seed)
            return gathered_again(graph, found) if seed % 2 else found

        check(name, placed, divide)


@pytest.mark.parametrize(
    "name", ["uneven MLP", "GPT", pytest.param("ResNet", marks=pytest.mark.prove)]
)
def test_random_division_boxed_again_for_the_backward(name: str) -> None:
    mesh = Mesh("a=2, b=2")
    kept = check(name, mesh, lambda graph: random_division(graph, mesh, seed=3))
    again = check(
        name,
        mesh,
        lambda graph: gathered_again(graph, random_division(graph, mesh, seed=3)),
    )
    assert again > kept


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_data_parallel_reduces_gradients_once(num_ranks: int) -> None:
    mesh = Mesh(f"a={num_ranks}")
    received = check(
        "regression",
        mesh,
        lambda graph: guided_division(graph, mesh, [{"batch": S(0)}]),
    )
    ideal = 2 * (num_ranks - 1) / num_ranks * (num_bytes("regression") + 8)
    assert abs(received - ideal) <= 8 * num_ranks * 5  # five tensors, cut unevenly


@pytest.mark.parametrize("mesh", [LINE, "a=2, b=2"])
@pytest.mark.parametrize("name", TINY)
def test_data_parallel_with_states_at_home(name: str, mesh: str) -> None:
    placed = Mesh(mesh)
    guides: list[Guide] = [{"batch": S(0)}] * len(placed.axes)

    def divide(graph: Graph) -> Division:
        return guided_division(graph, placed, guides, at_home(graph, placed))

    check(name, placed, divide)


def test_states_at_home_are_gathered_for_each_phase() -> None:
    mesh = Mesh("a=2")

    def divide(graph: Graph) -> Division:
        homes = at_home(graph, mesh)
        return guided_division(graph, mesh, [{"batch": S(0)}], homes)

    received = check("regression", mesh, divide)
    # All gathered for the forward, the last weight for the backward, gradients
    # scattered; parts of odd sizes make the first rank receive less.
    ideal = num_bytes("regression") + 5 * 12 * 8 / 2
    assert abs(received - ideal) <= 2 * 8 * 13 + 16


def test_gathered_again_counts_its_bytes_twice() -> None:
    mesh = Mesh("a=2")

    def divide(graph: Graph) -> Division:
        return guided_division(graph, mesh, [{"batch": S(0)}], at_home(graph, mesh))

    names = {s.tensor for s in case("GPT")[0].graph.states}
    kept = check("GPT", mesh, divide)
    again = check("GPT", mesh, lambda g: gathered_again(g, divide(g), names))
    graph = normalise(case("GPT")[0].graph, 2)
    twice = gathered_again(graph, divide(graph), names).again
    assert twice
    assert again - kept == sum(graph.tensors[name].num_bytes // 2 for name in twice)


MEGATRON: Guide = {
    r"(query|key|value|up|gate)\.weight": S(0),
    r"(query|key|value|up)\.bias": S(0),
    r"(out|down)\.weight": S(1),
}
VOCABULARY: Guide = {**MEGATRON, r"(tokens|head)\.weight": S(0)}


@pytest.mark.parametrize("name", ["GPT", "LLaMA"])
@pytest.mark.parametrize("guide", [MEGATRON, VOCABULARY], ids=["layers", "vocabulary"])
def test_tensor_parallel(name: str, guide: Guide) -> None:
    mesh = Mesh("a=2")
    check(name, mesh, lambda graph: guided_division(graph, mesh, [guide]))


def test_tensor_parallel_moves_less_than_it_computes_with() -> None:
    mesh = Mesh("a=2")
    guide: Guide = {r"^0\.": S(0), r"^2\.weight": S(1)}
    received = check(
        "regression", mesh, lambda graph: guided_division(graph, mesh, [guide])
    )
    assert received <= 2 * 7 * 5 * 8  # the output, once; its gradient is on all ranks


@pytest.mark.parametrize("name", ["GPT", "LLaMA"])
def test_sequence_and_tensor_parallel(name: str) -> None:
    mesh = Mesh("a=2, b=2")
    guides: list[Guide] = [{"batch": S(1)}, MEGATRON]
    check(name, mesh, lambda graph: guided_division(graph, mesh, guides))


@pytest.mark.parametrize("name", ["GPT", "LLaMA"])
def test_data_and_vocabulary_parallel(name: str) -> None:
    mesh = Mesh("a=2, b=2")
    guides: list[Guide] = [{"batch": S(0)}, VOCABULARY]
    check(name, mesh, lambda graph: guided_division(graph, mesh, guides))


@pytest.mark.parametrize("name", ["VGG", "VGG, batch norm", "ResNet"])
def test_images_split_in_rows(name: str) -> None:
    mesh = Mesh("a=2")
    check(name, mesh, lambda graph: guided_division(graph, mesh, [{"batch": S(2)}]))


def test_tables_split_over_ranks() -> None:
    mesh = Mesh("a=2")
    guide: Guide = {r"tables\..*weight": S(0), "batch": S(0)}
    check("DLRM", mesh, lambda graph: guided_division(graph, mesh, [guide]))
