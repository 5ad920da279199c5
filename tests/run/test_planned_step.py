"""How a rank runs a plan: in processes, compiled, and with gradients on their way."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placet.boxing.ledger import Ledger
from placet.placement.layout import replicated
from placet.placement.mesh import Mesh
from placet.program.capture import capture, state_tensors
from placet.program.division import Division
from placet.program.interpret import interpret
from placet.program.node import Compute
from placet.program.normalise.normalise import normalise
from placet.program.refine import GRADS, refine
from placet.program.signature import operator_of, replicated_signature
from placet.run.events import NodeFired
from placet.run.planned import PlannedStep
from placet.wire.interface import Wire
from placet.wire.twin import Twin
from testing.models.example import in_float64
from testing.models.zoo import TINY
from testing.planned import RankResult, assert_parts, random_division, run_rank
from testing.ranks import Carrier, run_ranks, run_threads
from tests.program.planned_programs import data_parallel


def prepared(name: str) -> tuple[Any, dict[str, Tensor], list[Tensor]]:
    """A captured model in float64, its states, and its batch's tensors."""
    torch.manual_seed(0)
    model, batch = in_float64(TINY[name])
    captured = capture(model, batch, TINY[name].loss)
    states = state_tensors(model, captured.graph)
    return captured, {n: t.clone() for n, t in states.items()}, captured.flatten(batch)


def as_process(wire: Wire, name: str, mesh: str, seed: int) -> RankResult:
    """One rank of a random division, made from its seed alone."""
    captured, states, tensors = prepared(name)
    graph = normalise(captured.graph, wire.num_ranks)
    division = random_division(graph, Mesh(mesh), seed)
    refined = refine(graph, division, name="processes")
    result = run_rank(wire, graph, division, refined, states, tensors)
    program = refined.program
    assert result.sent_bytes == program.sent_bytes(wire.rank)
    assert result.received_bytes == program.received_bytes(wire.rank)
    return result


@pytest.mark.procs
@pytest.mark.parametrize(
    "carrier", ["native", pytest.param("c10d", marks=pytest.mark.prove)]
)
def test_processes_give_one_devices_numbers(carrier: Carrier) -> None:
    name, mesh, seed = "GPT", "a=2", 2
    found = run_ranks(2, as_process, name, mesh, seed, carrier=carrier)
    captured, states, tensors = prepared(name)
    division = random_division(normalise(captured.graph, 2), Mesh(mesh), seed)
    whole = interpret(captured.graph, states, tensors)
    for rank, result in enumerate(found):
        assert result is not None
        assert_parts(captured.graph, division, whole, result, rank, atol=1e-9)


@pytest.mark.prove  # Inductor takes most of a minute to start
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler")
def test_compiled_segments_give_the_same() -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(8, 12), nn.Tanh()), torch.randn(6, 8)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        found: Tensor = model(batch).square().sum() / 72
        return found

    captured = capture(model, batch, loss)
    graph, mesh = normalise(captured.graph, 1), Mesh("a=1")
    picked = {
        op.name: (replicated_signature(operator_of(op, graph)),) for op in graph.ops
    }
    homes = {s.name: replicated(mesh) for s in graph.states}
    division = Division(mesh, picked, homes)
    refined = refine(graph, division, name="compiled")
    wire = Twin(1).wire(0)
    step = PlannedStep(graph, division, refined, wire, compile=True)
    states = dict(state_tensors(model, graph))
    result = step(states, [batch])
    whole = interpret(captured.graph, states, [batch])
    assert graph.loss is not None
    torch.testing.assert_close(result.loss, whole[graph.loss])
    for state in captured.graph.states:
        assert state.new is not None
        torch.testing.assert_close(result.news[state.name], whole[state.new])


def test_gradients_are_on_their_way_before_the_backward_ends() -> None:
    graph, division = data_parallel()
    refined = refine(graph, division, name="overlap", bucket_bytes=300)
    states = {s.name: torch.randn(graph.tensors[s.tensor].shape) for s in graph.states}
    batch = torch.randn(graph.tensors[graph.inputs[0]].shape)

    def events(wire: Wire) -> list[NodeFired]:
        found: list[NodeFired] = []
        step = PlannedStep(graph, division, refined, wire, Ledger(), found.append)
        step(states, [batch])
        return found

    program = refined.program
    grads = [b.name for b in program.boxings() if b.queue == GRADS]
    last = [n.name for n in program.nodes if isinstance(n, Compute)][-1]
    for found in run_threads(2, events):
        fired = {event.name: event for event in found}
        early = [g for g in grads if fired[g].start_seconds < fired[last].start_seconds]
        assert early
        assert early == grads[: len(early)]


def test_step_leaves_states_and_batch_as_they_were() -> None:
    captured, states, tensors = prepared("VGG, batch norm")
    graph = normalise(captured.graph, 1)
    division = random_division(graph, Mesh("a=1"), 0)
    refined = refine(graph, division, name="unchanged")
    before = {n: t.clone() for n, t in states.items()}
    given = [t.clone() for t in tensors]
    step = PlannedStep(graph, division, refined, Twin(1).wire(0))
    first, second = step(states, tensors), step(states, tensors)
    assert torch.equal(first.loss, second.loss)
    assert all(torch.equal(states[n], t) for n, t in before.items())
    assert all(torch.equal(a, b) for a, b in zip(tensors, given, strict=True))
