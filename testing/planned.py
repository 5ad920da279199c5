"""A divided graph run by all ranks, compared with one device."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from placet.boxing.ledger import Ledger
from placet.boxing.path import mean_bytes
from placet.placement.cluster import Cluster
from placet.placement.layout import Layout, part_box, relative
from placet.placement.mesh import Mesh
from placet.placement.placement import B, Placement, Split
from placet.planner.choices import layout_of
from placet.planner.plan import Plan
from placet.planner.planning import plan
from placet.program.capture import Captured, LossFunction, capture, state_tensors
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.interpret import interpret
from placet.program.normalise.normalise import normalise
from placet.program.refine import Refined, refine
from placet.program.route import route
from placet.program.rules.table import fits, signatures
from placet.program.signature import Operator, Signature, operator_of
from placet.run.planned import PlannedStep
from placet.wire.interface import Wire
from testing.models.example import Example, in_float64
from testing.ranks import run_threads

RUN_SECONDS = 120.0
"""Of all ranks, which are threads that write and run code of a thousand operators."""

TIES_BYTES = 3.0
"""At most what a plan of least bytes costs besides, for ties: see cost/objective.py."""


def random_division(graph: Graph, mesh: Mesh, seed: int) -> Division:
    """A legal division, drawn at random, with its boxings."""
    draw = random.Random(seed)
    picked = {}
    for op in graph.ops:
        operator = operator_of(op, graph)
        options = signatures(operator)
        for _ in range(20):
            found = tuple(draw.choice(options) for _ in mesh.axes)
            if is_legal(operator, mesh, found):
                break
        else:
            found = (options[0],) * len(mesh.axes)
        picked[op.name] = found
    homes = {}
    for state in graph.states:
        shape = graph.tensors[state.tensor].shape
        placements: list[Placement] = [B, *(Split(d) for d in range(len(shape)))]
        placements = [B] if state.is_foreign else placements
        homes[state.name] = Layout(mesh, [draw.choice(placements) for _ in mesh.axes])
    return route(graph, Division(mesh, picked, homes), mean_bytes)


def is_legal(operator: Operator, mesh: Mesh, picked: tuple[Signature, ...]) -> bool:
    """Whether signatures, one per axis, go together, and leave no rank without part."""
    inputs = [
        layout_of(mesh, tuple(s.inputs[i] for s in picked), meta.shape)
        for i, meta in enumerate(operator.inputs)
    ]
    outputs = [
        layout_of(mesh, tuple(s.outputs[i] for s in picked), meta and meta.shape)
        for i, meta in enumerate(operator.outputs)
    ]
    given = tuple(x for x in inputs if x is not None)
    made = tuple(x for x in outputs if x is not None)
    exist = len(given) == len(inputs) and len(made) == len(outputs)
    return exist and fits(operator, given, made)


def assert_plan_is_one_device(
    example: Example, num_ranks: int, loss: LossFunction | None = None, **asked: Any
) -> tuple[Plan, Graph]:
    """Ask for a plan, and run it in float64: as one device, and as it was priced.

    Args:
        loss: instead of the example's.
        asked: of `plan`, besides the cluster.
    """
    model, batch = in_float64(example)
    loss = loss or example.loss
    found = plan(model, batch, loss, cluster=Cluster.here(num_ranks), **asked)
    captured = capture(model, batch, loss)
    assert found.fingerprint == captured.fingerprint
    graph = normalise(captured.graph, num_ranks)
    states = {n: t.detach().clone() for n, t in state_tensors(model, graph).items()}
    refined = assert_same_as_one_device(captured, graph, found.division, states, batch)
    received = map(refined.program.received_bytes, range(num_ranks))
    if found.unit == "bytes":
        assert -1e-3 <= found.cost - sum(received) / num_ranks <= TIES_BYTES
    return found, graph


def assert_same_as_one_device(
    captured: Captured,
    graph: Graph,
    division: Division,
    states: Mapping[str, Tensor],
    batch: Any,
    *,
    atol: float = 1e-9,
) -> Refined:
    """Run a division on a twin; loss, gradients, buffers and bytes must be right."""
    tensors = captured.flatten(batch)
    whole = interpret(captured.graph, states, tensors)
    refined = refine(graph, division, name="test")
    found = run_threads(
        division.mesh.num_ranks,
        run_rank,
        graph,
        division,
        refined,
        states,
        tensors,
        timeout=RUN_SECONDS,
    )
    for rank, result in enumerate(found):
        assert_parts(captured.graph, division, whole, result, rank, atol=atol)
        assert (result.sent_bytes, result.received_bytes) == (
            refined.program.sent_bytes(rank),
            refined.program.received_bytes(rank),
        ), f"rank {rank} of {division.mesh!r}"
    return refined


def assert_parts(
    graph: Graph,
    division: Division,
    whole: Mapping[str, Tensor],
    result: "RankResult",
    rank: int,
    *,
    atol: float,
) -> None:
    """A rank's loss, gradients and buffers are its parts of one device's."""
    assert graph.loss is not None
    torch.testing.assert_close(result.loss, whole[graph.loss], atol=atol, rtol=1e-9)
    for state in graph.states:
        if state.new is None:
            continue
        want = whole[state.new]
        box = part_box(tuple(want.shape), division.homes[state.name], rank)
        part = want[relative(box, tuple((0, n) for n in want.shape))]
        where = f"{state.name} on rank {rank} of {division.mesh!r}: "
        try:
            torch.testing.assert_close(
                result.news[state.name], part, atol=atol, rtol=1e-8
            )
        except AssertionError as error:
            raise AssertionError(where + str(error)) from None


@dataclass(frozen=True)
class RankResult:
    """A step on one rank, and the bytes in its ledger."""

    loss: Tensor
    news: Mapping[str, Tensor]
    sent_bytes: int
    received_bytes: int


def run_rank(
    wire: Wire,
    graph: Graph,
    division: Division,
    refined: Refined,
    states: Mapping[str, Tensor],
    tensors: Sequence[Tensor],
) -> RankResult:
    """One step on one rank, of parts cut out of whole states."""
    ledger = Ledger()
    step = PlannedStep(graph, division, refined, wire, ledger)
    parts = {
        name: step.cut(tensor, division.homes[name]).clone()
        for name, tensor in states.items()
    }
    result = step(parts, tensors)
    assert result.loss is not None
    return RankResult(result.loss, result.news, *ledger.end_step())
