"""A divided graph run by all ranks, compared with one device."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from placet.boxing.path import mean_bytes
from placet.boxing.ledger import Ledger
from placet.placement.layout import Layout, part_box, relative
from placet.placement.mesh import Mesh
from placet.placement.placement import B, Split
from placet.planner.choices import layout_of
from placet.program.capture import Captured
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.interpret import interpret
from placet.program.refine import Refined, refine
from placet.program.route import route
from placet.program.rules.table import fits, signatures
from placet.program.signature import operator_of
from placet.run.planned import PlannedStep
from placet.wire.interface import Wire
from testing.ranks import run_threads


def random_division(graph: Graph, mesh: Mesh, seed: int) -> Division:
    """A legal division, drawn at random, with its boxings."""
    draw = random.Random(seed)
    picked = {}
    for op in graph.ops:
        operator = operator_of(op, graph)
        options = signatures(operator)
        for _ in range(20):
            found = tuple(draw.choice(options) for _ in mesh.axes)
            inputs = [
                layout_of(mesh, tuple(s.inputs[i] for s in found), meta.shape)
                for i, meta in enumerate(operator.inputs)
            ]
            outputs = [
                layout_of(
                    mesh,
                    tuple(s.outputs[i] for s in found),
                    None if meta is None else meta.shape,
                )
                for i, meta in enumerate(operator.outputs)
            ]
            if None in inputs or None in outputs:
                continue
            if fits(operator, tuple(inputs), tuple(outputs)):  # type: ignore[arg-type]
                break
        else:
            found = (options[0],) * len(mesh.axes)
        picked[op.name] = found
    homes = {}
    for state in graph.states:
        shape = graph.tensors[state.tensor].shape
        dims = [Split(d) for d in range(len(shape))]
        homes[state.name] = Layout(mesh, [draw.choice([B, *dims]) for _ in mesh.axes])
    return route(graph, Division(mesh, picked, homes), mean_bytes)


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
        division.mesh.num_ranks, _rank, graph, division, refined, states, tensors
    )
    loss = captured.graph.loss
    assert loss is not None
    for rank, (result, sent, received) in enumerate(found):
        where = f"rank {rank} of {division.mesh!r}"
        torch.testing.assert_close(result.loss, whole[loss], atol=atol, rtol=1e-9)
        for state in captured.graph.states:
            if state.new is None:
                continue
            want = whole[state.new]
            layout = division.homes[state.name]
            box = part_box(tuple(want.shape), layout, rank)
            part = want[relative(box, tuple((0, n) for n in want.shape))]
            torch.testing.assert_close(
                result.news[state.name],
                part,
                atol=atol,
                rtol=1e-8,
                msg=lambda text, s=state: f"{s.name} on {where}: {text}",
            )
        assert (sent, received) == (
            refined.program.sent_bytes(rank),
            refined.program.received_bytes(rank),
        ), where
    return refined


def _rank(
    wire: Wire,
    graph: Graph,
    division: Division,
    refined: Refined,
    states: Mapping[str, Tensor],
    tensors: Sequence[Tensor],
) -> tuple[Any, int, int]:
    ledger = Ledger()
    step = PlannedStep(graph, division, refined, wire, ledger)
    parts = {
        name: step.cut(tensor, division.homes[name]).clone()
        for name, tensor in states.items()
    }
    result = step(parts, tensors)
    sent, received = ledger.end_step()
    return result, sent, received
