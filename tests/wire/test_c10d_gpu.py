"""c10d on NCCL is a wire: one rank per CUDA device of this machine, at most four."""

import pytest
import torch

from testing.ranks import run_ranks
from tests.wire.conformance import (
    check_dtypes,
    check_exchange,
    check_in_flight,
    check_in_place,
    check_moves,
    check_no_graph,
    check_same_key,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BACKEND = "cpu:gloo,cuda:nccl"


def on_both_devices(wire, check):
    check(wire, f"cuda:{torch.cuda.current_device()}")
    check(wire, "cpu")


@pytest.mark.parametrize(
    "check",
    [
        check_moves,
        check_dtypes,
        check_in_place,
        check_in_flight,
        check_same_key,
        check_no_graph,
        check_exchange,
    ],
    ids=lambda check: check.__name__,
)
def test_nccl_conforms(check):
    num_ranks = min(4, torch.cuda.device_count())
    run_ranks(num_ranks, on_both_devices, check, backend=BACKEND, timeout=120)
