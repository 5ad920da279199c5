"""An operator's choices on a mesh: what its rule allows, with work for every axis."""

import torch

from placet.boxing.routes import Domain, make_domain
from placet.cost.objective import bytes_objective
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.planner.choices import Choices, find_choices, layout_of
from placet.program.functions.linear import linear
from placet.program.graph import TensorMeta
from placet.program.signature import Operator, Slot

aten = torch.ops.aten


def operator(target: object, shapes: list[tuple[int, ...]], made: tuple[int, ...]):
    metas = tuple(TensorMeta(shape, torch.float32) for shape in shapes)
    args = tuple(Slot(i) for i in range(len(shapes)))
    return Operator(target, args, (), metas, (TensorMeta(made, torch.float32),))


def domain(shape: tuple[int, ...], mesh: Mesh) -> Domain:
    options = (B, P(), *(S(dim) for dim in range(len(shape))))
    objective = bytes_objective(mesh)
    return make_domain(
        shape, torch.float32, mesh, [options] * len(mesh.axes), objective.step_price
    )


def choices(op: Operator, mesh: Mesh) -> Choices:
    inputs = [domain(meta.shape, mesh) for meta in op.inputs]
    outputs = [domain(op.outputs[0].shape, mesh)]
    return find_choices(op, mesh, inputs, outputs, bytes_objective(mesh))


def test_a_product_divides_its_work_over_every_axis() -> None:
    op = operator(linear, [(8, 6, 4), (4, 10)], (8, 6, 10))
    found = choices(op, Mesh("a=2, b=2"))
    texts = {tuple(map(repr, pair)) for pair in found.signatures}
    assert ("S(0), B -> S(0)", "B, S(1) -> S(2)") in texts
    assert ("S(2), S(0) -> P(sum)", "S(1), B -> S(1)") in texts
    assert all("S(" in one for pair in texts for one in pair)
    assert len(texts) == 16  # batch, sequence, in and out, on two axes


def test_a_light_operator_may_be_done_by_all() -> None:
    found = choices(operator(aten.relu.default, [(8, 6)], (8, 6)), Mesh("a=2"))
    texts = {repr(pair[0]) for pair in found.signatures}
    assert texts == {"B -> B", "S(0) -> S(0)", "S(1) -> S(1)"}


def test_work_that_cannot_be_divided_is_done_by_all() -> None:
    op = operator(linear, [(1, 1), (1, 1)], (1, 1))
    found = choices(op, Mesh("a=2"))
    assert repr(found.signatures[0][0]) == "B, B -> B"


def test_choices_name_layouts_of_the_domains() -> None:
    mesh = Mesh("a=2, b=3")
    op = operator(aten.add.Tensor, [(6, 6), (6,)], (6, 6))
    found = choices(op, mesh)
    inputs = [domain((6, 6), mesh), domain((6,), mesh)]
    for row, picked in zip(found.input_layouts, found.signatures, strict=True):
        for slot, index in enumerate(row):
            wanted = tuple(signature.inputs[slot] for signature in picked)
            assert inputs[slot].layouts[index].placements == wanted


def test_layouts_leave_no_rank_empty() -> None:
    mesh = Mesh("a=4")
    assert layout_of(mesh, (S(0),), (8,)) is not None
    assert layout_of(mesh, (S(0),), (5,)) is None  # chunks of 2, 2, 1, 0
    assert layout_of(mesh, (S(0),), (7,)) is not None
    assert layout_of(mesh, (S(1),), (7,)) is None
    assert layout_of(Mesh("a=2, b=2"), (P("max"), P("sum")), (4,)) is None
