"""The differentiable box: gradients of all changes, against their meaning."""

import math

import pytest
import torch

from placet.boxing.box import box, cotangent_in, cotangent_out, to_local
from placet.boxing.execute import Record
from placet.boxing.ledger import Ledger
from placet.placement.layout import Layout, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from testing.ranks import run_threads
from tests.boxing.lockstep import cut, layouts, parts_of, value_of


def averaged(layout):
    pairs = zip(layout.placements, layout.mesh.sizes, strict=True)
    return math.prod(n for p, n in pairs if p == P("avg"))


def box_and_back(wire, cases):
    """This rank's output and gradient for each case."""
    results = []
    for shape, src, dst, parts, cotangents in cases:
        part = parts[wire.rank].clone().requires_grad_()
        out = box(part, src, dst, wire, shape=shape)
        out.backward(cotangents[wire.rank])
        assert part.grad is not None
        results.append((out.detach(), part.grad))
    return results


def check_cotangents(pairs, shape, num_ranks):
    cases = [
        (
            shape,
            src,
            dst,
            parts_of(shape, src, 1),
            parts_of(shape, cotangent_in(dst), 2),
        )
        for src, dst in pairs
    ]
    by_rank = run_threads(num_ranks, box_and_back, cases, timeout=120)
    for i, (_, src, dst, parts, cotangents) in enumerate(cases):
        outs = {rank: by_rank[rank][i][0] for rank in range(num_ranks)}
        expected = value_of(parts, shape, src)
        torch.testing.assert_close(value_of(outs, shape, dst), expected)
        gradients = {rank: by_rank[rank][i][1] for rank in range(num_ranks)}
        cotangent = value_of(cotangents, shape, cotangent_in(dst))
        cotangent = cotangent * averaged(dst) / averaged(src)
        layout = cotangent_in(src)
        if src.reduction not in ("max", "min") and src != dst:
            layout = cotangent_out(src)
        found = value_of(gradients, shape, layout)
        torch.testing.assert_close(found, cotangent, msg=f"{src!r} -> {dst!r}")


@pytest.mark.parametrize(
    ("axes", "shape"), [("a=2, b=2", (5, 3)), ("a=3", (4, 2)), ("a=2", (1, 3))]
)
def test_cotangent_of_every_pair(axes, shape):
    mesh = Mesh(axes)
    pairs = [(src, dst) for src in layouts(mesh) for dst in layouts(mesh)]
    check_cotangents(pairs, shape, mesh.num_ranks)


@pytest.mark.prove
@pytest.mark.parametrize("shape", [(7, 5), (6, 6), (1, 1), (0, 3)])
def test_cotangent_of_every_pair_on_2x3(shape):
    mesh = Mesh("a=2, b=3")
    pairs = [(src, dst) for src in layouts(mesh) for dst in layouts(mesh)]
    check_cotangents(pairs, shape, mesh.num_ranks)


@pytest.mark.parametrize("reduction", ["avg", "max", "min"])
def test_cotangent_of_every_pair_with_another_reduction(reduction):
    mesh = Mesh("a=3")
    found = layouts(mesh, reduction)
    check_cotangents([(src, dst) for src in found for dst in found], (4, 2), 3)


def gradient_of(wire, part, src, dst, shape, cotangent):
    leaf = part[wire.rank].clone().requires_grad_()
    box(leaf, src, dst, wire, shape=shape).backward(cotangent[wire.rank])
    return leaf.grad.tolist()


def gradients(src, dst, parts, cotangents, shape=(2,)):
    mesh = Mesh("a=2")
    args = [torch.tensor(x, dtype=torch.float64) for x in parts]
    grads = [torch.tensor(x, dtype=torch.float64) for x in cotangents]
    src, dst = Layout(mesh, [src]), Layout(mesh, [dst])
    return run_threads(2, gradient_of, args, src, dst, shape, grads)


def test_cotangent_of_split_to_broadcast_adds_the_copies_gradients():
    assert gradients(S(0), B, [[1], [2]], [[1, 2], [30, 40]]) == [[31], [42]]


def test_cotangent_of_broadcast_to_split_is_a_term():
    assert gradients(B, S(0), [[1, 2], [1, 2]], [[5], [6]]) == [[5, 0], [0, 6]]


def test_cotangent_of_partial_to_broadcast_is_the_whole_gradient_of_each_term():
    found = gradients(P(), B, [[1, 2], [3, 4]], [[1, 2], [30, 40]])
    assert found == [[31, 42], [31, 42]]


def test_cotangent_of_an_average_is_divided():
    found = gradients(P("avg"), B, [[1, 2], [3, 4]], [[1, 2], [30, 40]])
    assert found == [[15.5, 21], [15.5, 21]]


def test_cotangent_of_a_maximum_goes_to_the_first_of_a_tie():
    found = gradients(P("max"), B, [[7, 2], [7, 4]], [[1, 2], [30, 40]])
    assert found == [[31, 0], [0, 42]]
    found = gradients(P("min"), B, [[7, 2], [7, 4]], [[1, 2], [30, 40]])
    assert found == [[31, 42], [0, 0]]


def test_cotangent_of_a_halo_adds_the_overlap():
    # Of 0..3, rank 0 holds 0, 1, 2 and rank 1 holds 1, 2, 3.
    halo = S(0, halo=(1, 1))
    found = gradients(S(0), halo, [[0, 1], [2, 3]], [[1, 2, 4], [10, 20, 40]], (4,))
    assert found == [[1, 12], [24, 40]]


def both_ways(wire, parts, src, dst, shape):
    part = parts[wire.rank].clone().requires_grad_()
    out = box(part, src, dst, wire, shape=shape)
    (gradient,) = torch.autograd.grad((out**3).sum(), part, create_graph=True)
    gradient.sum().backward()
    return part.grad


def test_box_twice_differentiable():
    mesh = Mesh("a=2")
    src, dst = Layout(mesh, [S(0)]), Layout(mesh, [S(1)])
    parts = parts_of((3, 4), src)
    found = run_threads(2, both_ways, parts, src, dst, (3, 4))
    # d/dx sum(3 x^2) = 6 x: each part is boxed and comes back, twice.
    for rank in range(2):
        torch.testing.assert_close(found[rank], 6 * parts[rank])


def through_local(wire):
    layout = Layout(Mesh("a=2"), [B])
    term = torch.ones(2, dtype=torch.float64, requires_grad=True)
    whole = box(term, Layout(Mesh("a=2"), [P()]), layout, wire)
    to_local(whole, layout, wire.rank).sum().backward()
    return term.grad.tolist()


def test_to_local_counts_the_gradient_of_equal_copies_once():
    assert run_threads(2, through_local) == [[1, 1], [1, 1]]


def across(wire, value):
    src = Layout(Mesh("x=2", ranks=[0, 1]), [S(0)])
    dst = Layout(Mesh("y=3", ranks=[3, 2, 1]), [P("max") if value is None else B])
    shape = (5,)
    whole = torch.arange(5.0, dtype=torch.float64)
    part = torch.empty(0, dtype=torch.float64)
    if wire.rank in src.mesh.ranks:
        part = cut(whole, part_box(shape, src, wire.rank)).clone()
    part.requires_grad_()
    out = box(part, src, dst, wire, shape=shape)
    (out * (wire.rank + 1)).sum().backward()
    return out.tolist(), part.grad.tolist()


def test_box_between_meshes_forward_and_back():
    found = run_threads(4, across, 1.0)
    whole = [0, 1, 2, 3, 4]
    assert [out for out, _ in found] == [[], whole, whole, whole]
    assert [grad for _, grad in found] == [[9, 9, 9], [9, 9], [], []]


def recorded(wire):
    ledger = Ledger()
    mesh = Mesh("a=2, b=2")
    src, dst = Layout(mesh, [P(), B]), Layout(mesh, [B, B])
    part = torch.ones(4, 2, dtype=torch.float64)
    box(part, src, dst, wire, key="w", record=Record(ledger, "w", step=3))
    return ledger


def test_box_writes_predicted_and_recorded_bytes_down():
    for ledger in run_threads(4, recorded):
        assert ledger.entries
        assert all(e.is_as_predicted and e.boxing == "w" for e in ledger.entries)
        assert {e.step for e in ledger.entries} == {3}
        assert ledger.received_bytes == 64


def refused(wire, part, src, dst, shape):
    with pytest.raises(ValueError, match="cannot box") as caught:
        box(part, src, dst, wire, shape=shape, key="w")
    return str(caught.value)


MESH = Mesh("data=4")


@pytest.mark.parametrize(
    ("part", "src", "dst", "shape", "message"),
    [
        (
            (6, 2),
            S(1),
            S(0),
            (6, 4),
            "cannot box S(1) -> S(0) of w (6, 4) over axis 'data' of 4 ranks: "
            "the part of rank 0 must be (6, 1), got (6, 2)",
        ),
        (
            (2, 4),
            S(0),
            B,
            None,
            r"over axis 'data' of 4 ranks: a part of shape (2, 4) fits",
        ),
        (
            (6, 4),
            B,
            S(2),
            None,
            "of w (6, 4) over axis 'data' of 4 ranks: cannot place",
        ),
    ],
)
def test_box_refuses(part, src, dst, shape, message):
    args = torch.zeros(part), Layout(MESH, [src]), Layout(MESH, [dst]), shape
    (found,) = run_threads(1, refused, *args)
    assert message in found
