"""Calls that no group could carry are refused before anything moves."""

import pytest
import torch
from torch.distributed import ReduceOp

from placet.wire import process_group_calls as calls
from placet.wire.process_group_calls import Place

PLACE = Place((3, 1), 0)
ONES = torch.ones(2)


@pytest.mark.parametrize("root", [-1, 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda root: calls.broadcast(PLACE, ONES, root),
        lambda root: calls.reduce(PLACE, ONES, root, ReduceOp.SUM),
        lambda root: calls.gather(PLACE, [], ONES, root),
        lambda root: calls.scatter(PLACE, ONES, [], root),
        lambda root: calls.send(PLACE, ONES, root),
        lambda root: calls.receive(PLACE, ONES, root),
    ],
)
def test_a_rank_that_is_no_member_is_refused(call, root):
    with pytest.raises(ValueError, match=f"rank {root} of the group; name one of"):
        call(root)
