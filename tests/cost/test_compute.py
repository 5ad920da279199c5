"""Operations, rooflines, objectives, and a machine's figures as a value."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from placet.boxing.path import direct_step
from placet.boxing.routes import make_domain
from placet.cost.compute import compute_seconds, is_view
from placet.cost.flops import flops
from placet.cost.links import Links
from placet.cost.machine import Machine, keep_machine, machine_file, machine_here
from placet.cost.measure import measure
from placet.cost.objective import (
    Objective,
    bytes_objective,
    seconds_objective,
)
from placet.placement.cluster import Cluster
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.program.functions.linear import contract, linear
from placet.program.graph import TensorMeta
from placet.program.signature import Operator, Signature, Slot, replicated_signature

aten = torch.ops.aten
MACHINE = Machine(
    "test",
    (("matmul", "float32", 1e10), ("matmul", "float64", 5e9)),
    memory_bytes_per_s=1e9,
    call_seconds=1e-6,
    boxing_seconds=1e-3,
)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> TensorMeta:
    return TensorMeta(shape, dtype)


def operator(target: object, *shapes: tuple[int, ...]) -> Operator:
    """An operator on tensors; the last shape is its output's."""
    inputs = tuple(meta(*shape) for shape in shapes[:-1])
    slots = tuple(map(Slot, range(len(inputs))))
    return Operator(target, slots, (), inputs, (meta(*shapes[-1]),))  # type: ignore[arg-type]


MM = operator(aten.mm.default, (1000, 500), (500, 2000), (1000, 2000))
ADD = operator(aten.add.Tensor, (1000, 500), (1000, 500), (1000, 500))
COLUMNS = Signature((B, S(1)), (S(1),))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (MM, 2 * 1000 * 500 * 2000),
        (operator(linear, (2, 3, 4), (4, 5), (2, 3, 5)), 2 * 2 * 3 * 4 * 5),
        (operator(contract, (2, 3, 4), (2, 3, 5), (4, 5)), 2 * 2 * 3 * 4 * 5),
        (
            operator(aten.bmm.default, (7, 3, 4), (7, 4, 5), (7, 3, 5)),
            2 * 7 * 3 * 4 * 5,
        ),
        (ADD, 0),
        (operator(aten.relu.default, (4,), (4,)), 0),
    ],
)
def test_operations_by_hand(found: Operator, expected: int):
    assert flops(found) == expected


def test_operations_of_a_convolution_and_its_backward():
    shapes = meta(2, 3, 8, 8), meta(4, 3, 3, 3)
    rest = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    forward = Operator(
        aten.convolution.default,
        (Slot(0), Slot(1), *rest),
        (),
        shapes,
        (meta(2, 4, 8, 8),),
    )
    assert flops(forward) == 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3)
    backward = Operator(
        aten.convolution_backward.default,
        (
            Slot(0),
            Slot(1),
            Slot(2),
            (0,),
            (1, 1),
            (1, 1),
            (1, 1),
            False,
            (0, 0),
            1,
            (True, True, False),
        ),
        (),
        (meta(2, 4, 8, 8), *shapes),
        (*shapes, None),
    )
    assert flops(backward) == 2 * flops(forward)


def test_operations_of_attention_on_a_processor():
    q, kv, row = (2, 4, 8, 16), (2, 4, 10, 16), (2, 4, 8)
    target = aten._scaled_dot_product_flash_attention_for_cpu
    forward = operator(target.default, q, kv, kv, q)
    assert flops(forward) == 4 * 2 * 4 * 8 * 10 * 16
    target = aten._scaled_dot_product_flash_attention_for_cpu_backward
    backward = operator(target.default, q, q, kv, kv, q, row, q)
    assert flops(backward) == 2.5 * flops(forward)


def test_a_roofline_by_hand():
    whole = (replicated_signature(MM),)
    assert compute_seconds(MM, whole, (4,), MACHINE) == pytest.approx(0.2 + 1e-6)
    divided = compute_seconds(MM, (COLUMNS,), (4,), MACHINE)
    assert divided == pytest.approx(0.05 + 1e-6)
    two = compute_seconds(MM, (COLUMNS, Signature((S(0), B), (S(0),))), (4, 2), MACHINE)
    assert two == pytest.approx(0.025 + 1e-6)
    rows = Signature((S(0), S(0)), (S(0),))
    moved = 3 * 1000 * 500 * 4 / 1e9
    assert compute_seconds(ADD, (rows,), (2,), MACHINE) == pytest.approx(
        moved / 2 + 1e-6
    )


def test_views_move_nothing():
    assert is_view(aten.view.default)
    assert is_view(aten.split.Tensor)
    assert not is_view(aten.add.Tensor)
    assert not is_view(aten.relu_.default)
    assert not is_view(linear)
    view = operator(aten.t.default, (4000, 4000), (4000, 4000))
    assert compute_seconds(view, (), (), MACHINE) == MACHINE.call_seconds


def test_bytes_prefer_divided_work_by_far_less_than_a_byte():
    mesh = Mesh("a=4")
    objective: Objective = bytes_objective(mesh)
    whole = objective.node_cost(MM, (replicated_signature(MM),), mesh)
    divided = objective.node_cost(MM, (COLUMNS,), mesh)
    assert 0 < divided < whole < 1e-3


def test_seconds_of_a_step_are_the_links_and_the_packing():
    cluster, mesh = Cluster.load("lab"), Mesh("a=4")
    objective: Objective = seconds_objective(mesh, cluster, MACHINE)
    layouts = Layout(mesh, [P()]), Layout(mesh, [S(0)])
    step = direct_step(((4000, 1000),), torch.float32, *layouts)
    assert step is not None
    packing = (16e6 + 4e6) / 1e9 + 1e-3
    links = Links(mesh, cluster).step_seconds(step)
    assert links == pytest.approx(12e6 / 1.25e8, rel=0.05)
    assert objective.step_price(step) == pytest.approx(links + packing)


def test_a_domain_in_seconds_for_a_thousand_ranks_is_quick():
    cluster, mesh = Cluster.load("nodes128x8"), Mesh("a=16, b=8, c=8")
    price = seconds_objective(mesh, cluster, MACHINE).step_price
    options = [[S(0), S(1), S(2), B, P()]] * 3
    make_domain((64, 128, 256), torch.float32, mesh, options, price)
    began = time.process_time()
    make_domain((1024, 2048, 4096), torch.float32, mesh, options, price)
    assert time.process_time() - began < 0.3


def test_a_machine_is_kept_and_found_again(tmp_path: Path):
    file = keep_machine(MACHINE, tmp_path)
    assert file == machine_file(tmp_path)
    assert machine_here(tmp_path) == MACHINE
    assert Machine.from_json(MACHINE.to_json()) == MACHINE


@pytest.mark.parametrize("text", ["{}", "[]", json.dumps({"flops_per_s": 3}), "x"])
def test_a_machine_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str):
    machine_file(tmp_path).write_text(text)
    with pytest.raises(ValueError, match="placet calibrate --compute"):
        machine_here(tmp_path)


def test_rates_of_what_was_not_measured():
    assert MACHINE.rate("matmul", torch.float64) == 5e9
    assert MACHINE.rate("matmul", torch.bfloat16) == 1e10
    assert MACHINE.rate("attention", torch.float32) == 1e10
    with pytest.raises(ValueError, match="rates must be above 0"):
        Machine("x", (("matmul", "float32", 0.0),), 1.0, 0.0)


def test_a_glance_measures_everything_and_leaves_the_threads():
    before = torch.get_num_threads()
    found = measure(0.2)
    assert torch.get_num_threads() == before
    assert {work for work, *_ in found.flops_per_s} == {
        "matmul",
        "convolution",
        "attention",
    }
    assert min(rate for *_, rate in found.flops_per_s) > 1e8
    assert found.memory_bytes_per_s > 1e8
    assert 0 < found.call_seconds < 1e-2
    assert 0 < found.boxing_seconds < 1e-1
    assert [size for size, _ in found.near] == sorted(size for size, _ in found.near)


def test_small_amounts_move_at_the_rate_of_caches():
    machine = replace(MACHINE, near=((1 << 10, 8e9), (1 << 20, 4e9)))
    assert machine.memory_seconds(512) == pytest.approx(512 / 8e9)
    assert machine.memory_seconds(1 << 20) == pytest.approx((1 << 20) / 4e9)
    between = machine.memory_seconds(1 << 15)  # halfway, counted in doublings
    assert between == pytest.approx((1 << 15) / (8e9 * 4e9) ** 0.5)
    assert machine.memory_seconds(1 << 30) == pytest.approx((1 << 30) / 1e9)
    assert Machine.from_json(machine.to_json()) == machine
    with pytest.raises(ValueError, match="rates must be above 0"):
        replace(MACHINE, near=((1 << 10, 0.0),))
