"""A process group refuses the algorithms that it does not have."""

from typing import cast

import pytest
import torch
import torch.distributed as dist

from placet.boxing.moves import AllGather, AllReduce, Move, ReduceScatter
from placet.wire.c10d_moves import Call, start

F32 = torch.float32
NO_GROUP = cast(dist.ProcessGroup, None)


@pytest.mark.parametrize(
    ("move", "known"),
    [
        (AllReduce((0, 1), 4, F32, algorithm="exchange"), "ring"),
        (AllGather((0, 1), (4, 4), F32, "direct"), "ring"),
        (AllGather((0, 1), (4, 3), F32, "ring"), "direct"),
        (ReduceScatter((0, 1), (2, 2), F32, algorithm="ring"), "direct"),
    ],
)
def test_other_algorithms_are_refused(move: Move, known: str) -> None:
    call = Call(move, torch.zeros(4), None, NO_GROUP, 0, "grads")
    with pytest.raises(ValueError, match=rf"'grads' .* runs this one as '{known}'"):
        start(call)
