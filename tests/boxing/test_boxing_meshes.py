"""Box intersection: two meshes, rotations and halos."""

import pytest
import torch

from placet.boxing.bound import bound_elements
from placet.boxing.intersection import RULE as INTERSECTION
from placet.boxing.intersection import all_copies
from placet.boxing.plan import plan_boxing
from placet.boxing.table import make_change
from placet.placement.layout import Layout, num_elements
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S, Split
from tests.boxing.lockstep import check, layouts, total_received


def test_rotation_sends_each_part_once():
    src = Layout(Mesh("a=4"), [S(0)])
    dst = Layout(Mesh("a=4", ranks=[1, 2, 3, 0]), [S(0)])
    plan = check((8, 2), src, dst)
    assert [plan.received_bytes(rank) for rank in range(4)] == [32] * 4
    assert total_received(plan) == plan.bound_bytes()


def test_between_disjoint_meshes_every_pair():
    for src in layouts(Mesh("a=2", ranks=[0, 1])):
        for dst in layouts(Mesh("x=3", ranks=[4, 2, 3])):
            plan = check((5, 4), src, dst)
            assert total_received(plan) == plan.bound_bytes(), (src, dst, plan)


def test_between_overlapping_meshes_every_pair():
    for src in layouts(Mesh("a=2, b=2")):
        for dst in layouts(Mesh("x=3", ranks=[2, 0, 4])):
            plan = check((5, 4), src, dst)
            assert total_received(plan) >= plan.bound_bytes()


def test_another_grid_of_the_same_ranks():
    # The same boxes on the same ranks: nothing moves.
    src = Layout(Mesh("a=4"), [S(0)])
    plan = check((8, 3), src, Layout(Mesh("x=2, y=2"), [S(0), S(0)]))
    assert total_received(plan) == 0
    assert plan.moves(0) == ()


def test_sum_is_reduced_before_it_crosses():
    src = Layout(Mesh("a=4", ranks=[0, 1, 2, 3]), [P()])
    plan = check((8, 4), src, Layout(Mesh("x=2", ranks=[4, 5]), [B]))
    # Three transfers reduce, two more deliver; sending all terms would be eight.
    assert total_received(plan) == 5 * 8 * 4 * 8


def test_ranks_outside_get_nothing():
    src, dst = Layout(Mesh("a=2"), [S(0)]), Layout(Mesh("x=2", ranks=[2, 3]), [S(1)])
    plan = plan_boxing([(4, 4)], torch.float64, src, dst)
    (lowered,) = plan.lowered(rank=7)
    assert lowered.move is None
    assert lowered.src_shapes is lowered.dst_shapes is None


def test_replicas_share_the_sending():
    src = Layout(Mesh("a=2", ranks=[0, 1]), [B])
    dst = Layout(Mesh("x=4", ranks=[2, 3, 4, 5]), [S(0)])
    plan = plan_boxing([(8, 2)], torch.float64, src, dst)
    assert plan.sent_bytes(0) == plan.sent_bytes(1) == 64


def halo_layouts(mesh, dim, *halos):
    return [Layout(mesh, [Split(dim, halo)]) for halo in halos]


@pytest.mark.parametrize("shape", [(8, 3), (7, 2), (2, 2), (3, 5), (0, 2)])
@pytest.mark.parametrize("axes", ["a=2", "a=4"])
def test_halos_come_and_go(shape, axes):
    mesh = Mesh(axes)
    halos = halo_layouts(mesh, 0, (1, 1), (0, 2), (3, 0), (9, 9))
    others = [*layouts(mesh), *halo_layouts(mesh, 1, (1, 0))]
    for halo in halos:
        for other in [*others, *halos]:
            check(shape, halo, other)
            check(shape, other, halo)


def test_halo_moves_only_the_borders():
    mesh = Mesh("a=4")
    plan = check((8, 2), Layout(mesh, [S(0)]), Layout(mesh, [S(0, halo=(1, 1))]))
    row = 2 * 8
    assert [plan.received_bytes(r) for r in range(4)] == [row, 2 * row, 2 * row, row]
    assert total_received(plan) == plan.bound_bytes()


def test_adjoint_of_a_halo_sums_the_overlap():
    mesh = Mesh("a=4")
    adjoint = Layout(mesh, [Split(0, (1, 1), adjoint=True)])
    plan = check((8, 2), adjoint, Layout(mesh, [S(0)]))
    row = 2 * 8
    assert [plan.received_bytes(r) for r in range(4)] == [row, 2 * row, 2 * row, row]
    for other in layouts(mesh):
        check((7, 3), adjoint, other)
        check((7, 3), other, adjoint)


def test_halo_beside_another_axis():
    mesh = Mesh("a=2, b=2")
    halo = S(0, halo=(1, 1))
    for src in ([halo, P()], [P(), halo], [halo, S(0)], [S(1), halo], [halo, B]):
        for dst in ([B, B], [S(0), S(0)], [halo, S(1)], [S(1), P()], [halo, B]):
            check((6, 3), Layout(mesh, src), Layout(mesh, dst))


def test_copies_of_a_plain_change_are_what_ranks_lack():
    mesh = Mesh("a=2, b=2")
    src, dst = Layout(mesh, [S(0), B]), Layout(mesh, [S(1), S(0)])
    change = make_change(((5, 3),), torch.float64, src, dst)
    copies = all_copies(change)
    kept = sum(num_elements(c.box) for c in copies if c.sender == c.receiver)
    moved = sum(num_elements(c.box) for c in copies if c.sender != c.receiver)
    assert kept + moved == 15
    assert moved * 8 == INTERSECTION.received_bytes(change)
    assert moved == bound_elements((5, 3), src, dst)
