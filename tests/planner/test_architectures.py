"""Twenty architectures of a well-known library, tiny: captured, planned, executed.

captured   as eager computes                             one by a seed in the quick
planned    on 2 x 2 ranks, by plan()                     suite, all in the long ones
uneven     on other numbers of ranks, 7 sequences        long
random     each operator divided by any of its rules     long

Divided, each is one device's step in float64: loss, gradients, buffers, bytes.
"""

import random

import pytest
import torch

from placet.placement.mesh import Mesh
from placet.program.capture import capture, state_tensors
from placet.program.normalise.normalise import normalise
from placet.program.signature import target_name
from testing.architectures import ARCHITECTURES, double_loss, example
from testing.models.eager import assert_capture_is_eager
from testing.models.example import in_float64, of_rows
from testing.planned import (
    assert_plan_is_one_device,
    assert_same_as_one_device,
    random_division,
)

NAMES = tuple(ARCHITECTURES)
SEED = 4
QUICK = tuple(random.Random(SEED).sample(NAMES, 1))
REST = tuple(name for name in NAMES if name not in QUICK)
EVERY = [*QUICK, *(pytest.param(name, marks=pytest.mark.prove) for name in REST)]
SEARCH_SECONDS = 2.0
"""A plan that is not the best must be right as well."""

PRODUCTS = ("linear", "contract")
MESH = Mesh("a=2, b=2")
UNEVEN_ROWS = 7


def test_twenty_of_the_kinds_that_count() -> None:
    assert len(NAMES) == 20
    kinds = [name.partition(" (")[2].rstrip(")") for name in NAMES]
    assert kinds.count("experts") >= 2
    assert {"ALiBi", "state space", "encoder-decoder"} <= set(kinds)


@pytest.mark.parametrize("name", EVERY)
def test_captured_is_the_eager_step(name: str) -> None:
    torch.manual_seed(SEED)
    captured = assert_capture_is_eager(*in_float64(example(name)), example(name).loss)
    assert len(captured.graph.ops) > 200


def assert_planned(name: str, mesh: Mesh, rows: int | None = None) -> None:
    """A plan, held against one device; no rank does all of a product."""
    torch.manual_seed(SEED)
    model = example(name)
    found, graph = assert_plan_is_one_device(
        model if rows is None else of_rows(model, rows),
        mesh.num_ranks,
        double_loss,
        mesh=mesh,
        objective="bytes",
        time_limit_seconds=SEARCH_SECONDS,
    )
    products = [op for op in graph.ops if target_name(op.target) in PRODUCTS]
    assert products
    for op in products:
        picked = found.division.signatures[op.name]
        assert not any(signature.is_replicated for signature in picked), op.name


@pytest.mark.parametrize("name", EVERY)
def test_planned_is_one_device(name: str) -> None:
    assert_planned(name, MESH)


@pytest.mark.prove
@pytest.mark.parametrize("mesh", ["a=2", "a=3", "a=2, b=3"])
@pytest.mark.parametrize("name", NAMES)
def test_planned_for_uneven_parts_is_one_device(name: str, mesh: str) -> None:
    assert_planned(name, Mesh(mesh), UNEVEN_ROWS)


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_divided_at_random_is_one_device(name: str) -> None:
    torch.manual_seed(SEED)
    model, batch = in_float64(example(name))
    captured = capture(model, batch, double_loss)
    graph = normalise(captured.graph, MESH.num_ranks)
    states = {n: t.detach() for n, t in state_tensors(model, graph).items()}
    division = random_division(graph, MESH, SEED)
    assert_same_as_one_device(captured, graph, division, states, batch)
