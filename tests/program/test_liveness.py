"""The peak of a step's memory is known before it runs."""

import platform
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placet.placement.layout import replicated
from placet.placement.mesh import Mesh
from placet.program.capture import Captured, capture, state_tensors
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.lifetimes import MAX_IN_FLIGHT
from placet.program.liveness import UPDATE, Kept, Peak, peak_bytes
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.program.signature import operator_of, replicated_signature
from placet.run.planned import PlannedStep
from placet.torch_private.storages import LiveStorages, allocator_peak
from placet.wire.twin import Twin
from testing.divisions import gathered_again, guided_division
from testing.memory import measured_peaks
from testing.models.example import Example, in_float64
from testing.models.language import Gpt
from testing.models.vision import ResNet, Vgg
from testing.models.zoo import TINY, images, text, vectors
from testing.planned import random_division
from tests.program.planned_programs import (
    DATA,
    at_home,
    data_parallel,
    perceptron_graph,
    squares,
)


@cache
def case(name: str) -> tuple[Captured, dict[str, Tensor], list[Tensor]]:
    """A small model, its states, its batch."""
    torch.manual_seed(0)
    model, batch = in_float64(TINY[name])
    captured = capture(model, batch, TINY[name].loss)
    return captured, dict(state_tensors(model, captured.graph)), captured.flatten(batch)


def check(graph: Graph, division: Division, states: Any, batch: list[Tensor]) -> None:
    """On every rank: measured <= predicted <= 1.1 measured."""
    refined = refine(graph, division, name="test")
    found = measured_peaks(graph, division, refined, states, batch)
    for rank, (measured, place) in enumerate(found):
        peak = peak_bytes(graph, division, refined, rank, with_workspaces=False)
        assert measured <= peak.num_bytes <= 1.1 * measured, (rank, place, peak)
        assert sum(peak.by_category.values()) == peak.num_bytes


NOTHING = Kept()


def peak_of(case: tuple[Graph, Division], kept: Kept = NOTHING) -> Peak:
    """The peak of a divided graph on its first rank."""
    graph, division = case
    made = refine(graph, division, name="test")
    return peak_bytes(graph, division, made, 0, kept=kept)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("MLP", "a=1"),
        ("MLP", "a=2, b=2"),
        ("DLRM", "a=3"),
        ("VGG, batch norm", "a=2"),
    ],
)
def test_random_divisions_hold_what_is_predicted(name: str, mesh: str) -> None:
    captured, states, batch = case(name)
    graph = normalise(captured.graph, Mesh(mesh).num_ranks)
    check(graph, random_division(graph, Mesh(mesh), seed=1), states, batch)


@pytest.mark.prove
@pytest.mark.parametrize("mesh", ["a=1", "a=2", "a=3", "a=2, b=2", "a=2, b=3"])
@pytest.mark.parametrize("name", sorted(TINY))
@pytest.mark.parametrize("seed", range(4))
def test_many_random_divisions(name: str, mesh: str, seed: int) -> None:
    captured, states, batch = case(name)
    graph = normalise(captured.graph, Mesh(mesh).num_ranks)
    check(graph, random_division(graph, Mesh(mesh), seed), states, batch)


@pytest.mark.parametrize(
    "name", ["GPT", pytest.param("ResNet", marks=pytest.mark.prove)]
)
def test_experts_hold_what_is_predicted(name: str) -> None:
    captured, states, batch = case(name)
    graph, mesh = normalise(captured.graph, 2), Mesh("data=2")
    check(graph, guided_division(graph, mesh, [DATA]), states, batch)
    homes = guided_division(graph, mesh, [DATA], at_home(graph, mesh))
    check(graph, homes, states, batch)
    check(graph, gathered_again(graph, homes), states, batch)


def _fitting(name: str) -> Example:
    """A model whose activations are larger than what kernels take in any case."""
    if name == "MLP":
        return vectors("MLP", (256, 512, 256, 64), batch=512)
    if name == "GPT":
        model = partial(Gpt, width=64, num_layers=2, num_heads=4, vocabulary=256)
        return text(
            "GPT", partial(model, length=64), batch=8, length=64, vocabulary=256
        )
    model_fn: dict[str, Callable[[], nn.Module]] = {
        "ResNet": partial(ResNet, (1, 1), width=16, num_classes=10),
        "VGG": partial(
            Vgg, (1, 1), width=16, image=32, hidden=64, num_classes=10, norms=True
        ),
    }
    return images(name, model_fn[name], batch=8, side=32, num_classes=10)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="other kernels than those measured"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["MLP", "GPT", "ResNet", "VGG"])
def test_allocator_gives_what_is_predicted(name: str, dtype: torch.dtype) -> None:
    """One rank, by the allocator's own record: with the workspaces of kernels."""
    example = _fitting(name)
    model, batch = in_float64(example)
    model = model.to(dtype)
    batch = (batch[0].to(dtype) if batch[0].is_floating_point() else batch[0], batch[1])
    captured = capture(model, batch, example.loss)
    graph, mesh = normalise(captured.graph, 1), Mesh("a=1")
    division = replicated_division(graph, mesh)
    refined = refine(graph, division, name="test")
    step = PlannedStep(graph, division, refined, Twin(1).wire(0))
    states, tensors = dict(state_tensors(model, graph)), captured.flatten(batch)
    step(states, tensors)
    given = sum(tensor.nbytes for tensor in (*states.values(), *tensors))
    measured = given + allocator_peak(lambda: step(states, tensors))
    peak = peak_bytes(graph, division, refined, 0)
    assert measured <= peak.num_bytes <= 1.1 * measured, peak


def replicated_division(graph: Graph, mesh: Mesh) -> Division:
    """Every rank does everything."""
    whole = replicated(mesh)
    picked = {
        op.name: (replicated_signature(operator_of(op, graph)),) for op in graph.ops
    }
    return Division(mesh, picked, {s.name: whole for s in graph.states})


def test_dropout_holds_what_is_predicted() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16))
    batch = torch.randn(20000, 16)
    captured = capture(model, batch, squares)
    graph = normalise(captured.graph, 2)
    states = dict(state_tensors(model, captured.graph))
    check(graph, guided_division(graph, Mesh("data=2"), [DATA]), states, [batch])


def test_chain_by_hand() -> None:
    """One layer of one rank: y = x w + b, loss = mean (y - x)^2."""
    with torch.device("meta"):
        model, batch = nn.Linear(64, 64, bias=False), torch.empty(256, 64)
    graph = normalise(capture(model, batch, squares).graph, 1)
    peak = peak_of((graph, guided_division(graph, Mesh("a=1"), [{}])))
    weight, rows = 64 * 64 * 4, 256 * 64 * 4
    assert peak.by_category["parameters"] == weight
    assert peak.by_category["batch"] == rows
    # The difference and its square; or it, and what its gradient is made of.
    assert 2 * rows <= peak.by_category["activations"] <= 3 * rows + weight


def test_optimizer_keeps_a_multiple_of_what_trains() -> None:
    bare = peak_of(data_parallel())
    adam = peak_of(data_parallel(), kept=Kept(2))
    parameters = bare.by_category["parameters"]
    assert adam.num_bytes == bare.num_bytes + 2 * parameters
    assert adam.by_category["optimizer state"] == 2 * parameters
    update = peak_of(data_parallel(), kept=Kept(2, update=100, left=1))
    assert update.node == UPDATE


def _deep_graph(num_ranks: int, width: int) -> Graph:
    """Twenty square layers."""
    with torch.device("meta"):
        layers = (nn.Linear(width, width, bias=False) for _ in range(20))
        model, batch = nn.Sequential(*layers), torch.empty(8, width)
    return normalise(capture(model, batch, squares).graph, num_ranks)


def test_states_at_home_hold_a_share() -> None:
    # Deep and wide, so that the few that are in flight at a time do not matter.
    graph, mesh = _deep_graph(4, width=256), Mesh("data=4")
    whole = peak_of((graph, guided_division(graph, mesh, [DATA])))
    homes = guided_division(graph, mesh, [DATA], at_home(graph, mesh))
    parts = peak_of((graph, homes))
    assert 4 * parts.by_category["parameters"] == whole.by_category["parameters"]
    again = peak_of((graph, gathered_again(graph, homes)))
    assert again.num_bytes <= parts.num_bytes < whole.num_bytes


def test_gradients_in_flight_are_few() -> None:
    """Deep data parallelism holds gradients once, but for those that travel."""
    graph = _deep_graph(2, width=64)
    division = guided_division(graph, Mesh("data=2"), [DATA])
    refined = refine(graph, division, name="deep", bucket_bytes=1)
    peak = peak_bytes(graph, division, refined, 0)
    gradient = 64 * 64 * 4
    held = peak.by_category["gradients"] + peak.by_category["boxings in flight"]
    assert held <= (20 + MAX_IN_FLIGHT + 1) * gradient


def test_peak_of_one_of_1024_ranks_is_found_at_once() -> None:
    graph, mesh = perceptron_graph(1024, width=1024, rows=2048), Mesh("data=1024")
    homes = guided_division(graph, mesh, [DATA], at_home(graph, mesh))
    refined = refine(graph, homes, name="wide")
    began = time.process_time()
    peak = peak_bytes(graph, homes, refined, 1023)
    assert time.process_time() - began < 5
    assert 1024 * peak.by_category["parameters"] == 3 * (1024 * 1024 + 1024) * 4


def test_storages_are_counted_once_and_until_they_are_freed() -> None:
    with LiveStorages() as watch:
        x = torch.empty(100)
        view = x.view(10, 10)[2:]
        assert watch.live_bytes == 400
        del x
        assert watch.live_bytes == 400
        made = view + 1
        del view
        assert watch.live_bytes == made.nbytes
    assert watch.peak_bytes == 400 + made.nbytes
