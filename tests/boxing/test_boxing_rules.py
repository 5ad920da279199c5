"""Single rules, by hand: what moves, what stays, which dtypes and refusals."""

import pytest
import torch

from placet.boxing.execute import start
from placet.boxing.moves import AllGather, AllReduce, AllToAll, ReduceScatter
from placet.boxing.plan import lower_step, plan_boxing
from placet.placement.layout import Layout, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.wire.twin import Twin
from tests.boxing.lockstep import (
    check,
    cut,
    parts_of,
    run_all,
    total_received,
    value_of,
)

TWO, THREE, FOUR = Mesh("a=2"), Mesh("a=3"), Mesh("a=4")
SQUARE = Mesh("a=2, b=2")


def plan(mesh, shape, src, dst, dtype=torch.float64, **order):
    src, dst = (x if isinstance(x, list) else [x] for x in (src, dst))
    src_order, dst_order = order.get("src_order"), order.get("dst_order")
    layouts = Layout(mesh, src, src_order), Layout(mesh, dst, dst_order)
    return plan_boxing([shape], dtype, *layouts)


def test_split_to_broadcast_uneven():
    found = plan(THREE, (4, 2), S(0), B)
    # ceil(4 / 3) = 2 rows each, so the third rank has none.
    assert found.moves(0) == (AllGather((0, 1, 2), (4, 4, 0), torch.float64),)
    assert [found.received_bytes(r) for r in range(3)] == [32, 32, 64]
    assert repr(found) == "S(0) -> B @a"


def test_partial_to_broadcast_is_one_all_reduce():
    found = plan(FOUR, (8,), P(), B)
    assert found.moves(2) == (AllReduce((0, 1, 2, 3), 8, torch.float64, "sum"),)
    assert total_received(found) == found.bound_bytes() == 2 * 3 * 64


def test_partial_to_split_is_one_reduce_scatter():
    found = plan(FOUR, (8,), P("max"), S(0))
    counts = (2, 2, 2, 2)
    assert found.moves(0) == (
        ReduceScatter((0, 1, 2, 3), counts, torch.float64, "max"),
    )


def test_split_to_split_is_a_true_all_to_all():
    found = plan(TWO, (2, 2), S(0), S(1))
    assert found.moves(0) == (AllToAll((0, 1), ((0, 1), (1, 0)), torch.float64),)


@pytest.mark.parametrize(
    ("src", "dst"), [(B, S(0)), (B, P()), (S(1), P()), (B, P("avg"))]
)
def test_changes_without_a_move(src, dst):
    assert plan(FOUR, (8, 4), src, dst).moves(1) == ()


def test_two_partial_axes_reduce_as_one():
    found = plan(SQUARE, (8,), [P(), P()], [B, B])
    assert found.moves(0) == (AllReduce((0, 1, 2, 3), 8, torch.float64, "sum"),)
    assert repr(found) == "(P(sum), P(sum)) -> (B, B) @a,b"


def test_nested_uneven_split_gathers_all_rows():
    # pytorch#194457: five rows over a flattened 2x2 mesh lost one.
    found = check((5, 3), Layout(SQUARE, [S(0), S(0)]), Layout(SQUARE, [B, B]))
    assert repr(found) == "(S(0), S(0)) -> (B, B) @a,b"
    assert len(found.moves(0)) == 1


def test_replicas_reduce_a_share_each():
    found = check((4, 4), Layout(SQUARE, [P(), B]), Layout(SQUARE, [B, P()]))
    assert [found.received_bytes(r) for r in range(4)] == [64, 64, 64, 64]


def test_replicas_of_a_sum_move_less_than_an_all_reduce():
    mesh = Mesh("a=3, b=2")
    found = check((6, 4), Layout(mesh, [P(), B]), Layout(mesh, [B, B]))
    whole = 6 * 4 * 8
    assert total_received(found) == 7 * whole < 8 * whole


def test_cuts_in_another_order():
    mesh = Mesh("a=2, b=3")
    inner = Layout(mesh, [S(0), S(0)])
    outer = Layout(mesh, [S(0), S(0)], ["b", "a"])
    assert inner != outer
    for shape in [(12, 2), (7, 3), (2, 1)]:
        for src, dst in [(inner, outer), (outer, inner)]:
            found = check(shape, src, dst)
            assert total_received(found) == found.bound_bytes()
        for end in ([B, S(0)], [S(0), B], [S(1), S(0)], [P(), B], [S(1), S(1)]):
            check(shape, outer, Layout(mesh, end))
            check(shape, Layout(mesh, end), outer)


def test_gathering_the_outer_cut_is_not_one_all_gather():
    # Rank (i, j) has quarter 2i + j and needs half j: its neighbours along a differ.
    found = plan(SQUARE, (8,), [S(0), S(0)], [B, S(0)])
    assert not any(isinstance(move, AllGather) for move in found.moves(0))
    inner = plan(SQUARE, (8,), [S(0), S(0)], [B, S(0)], src_order=["b", "a"])
    assert [type(move) for move in inner.moves(0)] == [AllGather]


@pytest.mark.parametrize(
    ("src", "dst"),
    [(P(), B), (P(), S(0)), (S(0), B), (S(0), S(1)), (B, P()), (B, S(0))],
)
def test_many_tensors_in_one_payload(src, dst):
    shapes = [(5, 3), (1, 2), (4, 4), (0, 2), (7, 2, 2)]
    layouts = Layout(THREE, [src]), Layout(THREE, [dst])
    tensors = [parts_of(shape, layouts[0], i) for i, shape in enumerate(shapes)]
    found = plan_boxing(shapes, torch.float64, *layouts)
    assert len(found.moves(0)) <= 1
    outs = run_all(found, *tensors)
    for shape, before, after in zip(shapes, tensors, outs, strict=True):
        expected = value_of(before, shape, layouts[0])
        torch.testing.assert_close(value_of(after, shape, layouts[1]), expected)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.int32, torch.bfloat16]
)
@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
def test_dtypes(dtype, reduction):
    terms = [torch.tensor([[0, 1, 0, 1]]), torch.tensor([[0, 0, 1, 1]])]
    parts = {rank: term.to(dtype) for rank, term in enumerate(terms)}
    whole = {
        "sum": parts[0] + parts[1],
        "max": torch.maximum(parts[0], parts[1]),
        "min": torch.minimum(parts[0], parts[1]),
    }[reduction]
    src = Layout(TWO, [P(reduction)])
    for end in (B, S(0), S(1)):
        dst = Layout(TWO, [end])
        (out,) = run_all(plan_boxing([(1, 4)], dtype, src, dst), parts)
        for rank in range(2):
            assert torch.equal(out[rank], cut(whole, part_box((1, 4), dst, rank)))
            assert out[rank].dtype == dtype
        (back,) = run_all(plan_boxing([(1, 4)], dtype, dst, src), out)
        joined = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
        assert torch.equal(joined[reduction](back[0], back[1]), whole)


def test_average_of_integers_is_refused():
    with pytest.raises(ValueError, match="an average of integers is not an integer"):
        plan(TWO, (4,), P("avg"), B, dtype=torch.int64)


def test_sum_to_average_only_scales():
    found = check((4, 2), Layout(FOUR, [P()]), Layout(FOUR, [P("avg")]))
    assert found.moves(0) == ()
    check((4, 2), Layout(FOUR, [P("avg")]), Layout(FOUR, [P()]))


def test_maximum_to_sum_is_reduced_between():
    check((4, 2), Layout(FOUR, [P("max")]), Layout(FOUR, [P()]))
    check((4, 2), Layout(SQUARE, [P("max"), S(0)]), Layout(SQUARE, [S(0), P()]))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3)])
def test_scalars_and_empty_tensors(shape):
    options = [B, P()] + ([S(0)] if shape else [])
    for src in options:
        for dst in options:
            check(shape, Layout(THREE, [src]), Layout(THREE, [dst]))


def test_axis_of_one_rank():
    mesh = Mesh("a=1, b=2")
    for src in ([S(0), P()], [P(), S(0)], [B, P()], [P(), P()]):
        for dst in ([B, B], [S(0), S(0)], [P(), B]):
            check((3, 2), Layout(mesh, src), Layout(mesh, dst))


def test_mesh_of_three_axes():
    mesh = Mesh("a=2, b=2, c=2")
    for src in ([P(), P(), S(0)], [S(0), S(0), S(0)], [B, P(), S(1)], [S(1), B, S(0)]):
        for dst in ([B, B, B], [S(0), B, P()], [S(0), S(1), S(0)], [P(), S(1), B]):
            check((5, 6), Layout(mesh, src), Layout(mesh, dst))


def test_split_of_a_missing_dim_is_refused():
    with pytest.raises(
        ValueError, match=r"cannot box S\(0\) -> S\(2\) of a tensor \(6, 4"
    ):
        plan(FOUR, (6, 4), S(0), S(2))


def test_pluggable_price():
    # A price of moves alone takes the one direct move; bytes alone reduce first.
    mesh = Mesh("a=3, b=2")
    ends = Layout(mesh, [P(), B]), Layout(mesh, [B, B])
    few = plan_boxing([(6, 4)], torch.float64, *ends, price=lambda step: 1.0)
    assert len(few.steps) == 1
    assert len(plan_boxing([(6, 4)], torch.float64, *ends).steps) > 1


def lowered_and_wires(src, dst, shapes):
    found = plan_boxing(shapes, torch.float32, Layout(TWO, [src]), Layout(TWO, [dst]))
    (step,) = found.steps
    twin = Twin(2, timeout_seconds=5)
    return [(lower_step(step, rank), twin.wire(rank)) for rank in range(2)]


def test_all_reduce_of_one_tensor_leaves_it_alone_unless_consumed():
    for consume in (False, True):
        tensors = [torch.ones(4), torch.ones(4)]
        pending = [
            start(lowered, (x,), wire, key="k", consume=consume)
            for (lowered, wire), x in zip(
                lowered_and_wires(P(), B, [(4,)]), tensors, strict=True
            )
        ]
        (out,) = pending[0].finish()
        assert out.tolist() == [2, 2, 2, 2]
        assert (out.data_ptr() == tensors[0].data_ptr()) == consume
        assert tensors[0].tolist() == ([2] * 4 if consume else [1] * 4)


def test_outputs_are_views_of_one_arrival():
    shapes = [(4,), (2, 2)]
    pending = [
        start(lowered, (torch.ones(4), torch.ones(2, 2)), wire, key="k")
        for lowered, wire in lowered_and_wires(P(), B, shapes)
    ]
    first, second = pending[0].finish()
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_start_refuses_wrong_parts():
    (lowered, wire), _ = lowered_and_wires(P(), B, [(4,), (2, 2)])
    with pytest.raises(ValueError, match=r"tensor 1 is \(4,\), .* must be \(2, 2\)"):
        start(lowered, (torch.ones(4), torch.ones(4)), wire, key="k")
    with pytest.raises(ValueError, match="2, not 1"):
        start(lowered, (torch.ones(4),), wire, key="k")
    with pytest.raises(ValueError, match=r"planned for torch\.float32"):
        start(lowered, (torch.ones(4), torch.ones(2, 2).double()), wire, key="k")
