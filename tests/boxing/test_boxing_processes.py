"""Boxings over real processes: what the twin does, gloo does."""

import pytest
import torch

from placet.boxing.box import box
from placet.boxing.execute import Record
from placet.boxing.ledger import Ledger
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from testing.ranks import run_ranks
from tests.boxing.lockstep import parts_of, value_of

MESH = Mesh("a=2, b=2")
CASES = [
    ([P(), P()], [B, B]),
    ([P(), P()], [S(0), S(0)]),
    ([S(0), S(0)], [B, B]),
    ([S(0), S(1)], [S(1), S(0)]),
    ([S(0), P()], [B, S(0)]),
    ([P(), B], [B, B]),
    ([P(), B], [B, P()]),
    ([P("max"), S(1)], [S(0), B]),
]
SHAPE = (5, 3)


def boxed(wire):
    ledger = Ledger()
    outs = []
    for i, (src, dst) in enumerate(CASES):
        layouts = Layout(MESH, src), Layout(MESH, dst)
        part = parts_of(SHAPE, layouts[0], i)[wire.rank]
        record = Record(ledger, f"{i}")
        outs.append(box(part, *layouts, wire, shape=SHAPE, key=f"{i}", record=record))
    return outs, len(ledger.entries), ledger.mismatched


@pytest.mark.procs
def test_boxing_over_gloo():
    found = run_ranks(4, boxed)
    for i, (src, dst) in enumerate(CASES):
        src, dst = Layout(MESH, src), Layout(MESH, dst)
        outs = {rank: found[rank][0][i] for rank in range(4)}
        expected = value_of(parts_of(SHAPE, src, i), SHAPE, src)
        torch.testing.assert_close(value_of(outs, SHAPE, dst), expected)
    for _, num_entries, mismatched in found:
        assert num_entries >= len(CASES)
        assert mismatched == []
