"""The wire as a process group: each call of torch.distributed gives what gloo gives."""

import os
import re
import signal

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import placet.wire.backend  # noqa: F401 (registers it)
from placet.errors import PeerLost, WireTimeout
from testing.ranks import run_ranks
from tests.wire.process_group_checks import CHECKS
from tests.wire.process_group_programs import PROGRAMS


def check_all(_wire):
    # Starting processes is the dear part: one start serves all checks.
    gloo = dist.new_group(backend="gloo")
    problems = []
    for program in PROGRAMS:
        wanted = list(program(gloo))
        found = list(program(dist.group.WORLD))
        assert len(found) == len(wanted) > 0, program.__name__
        for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
            if mine.dtype != theirs.dtype or not torch.equal(mine, theirs):
                problems.append((program.__name__, i, mine, theirs))
    assert not problems
    for check in CHECKS:
        check()


@pytest.mark.procs
def test_each_call_gives_what_gloo_gives():
    run_ranks(2, check_all, backend="placet", timeout=40)


def uneven_data(_wire):
    net = DistributedDataParallel(torch.nn.Linear(2, 1))
    dist.barrier()
    is_first = dist.get_rank() == 0
    dist.group.WORLD.shared.wire.timeout_seconds = 20.0 if is_first else 0.5
    if is_first:
        # One step more than rank 1 makes; C++ waits, so Python sees its error.
        with pytest.raises(RuntimeError, match=r"Cannot extract .*: (Wire|Peer)"):
            net(torch.ones(1, 2)).sum().backward()
        return
    with pytest.raises(WireTimeout, match="moves that only some ranks") as caught:
        dist.barrier()
    assert re.search(
        r"rank 0 has 'world/all_reduce/float32\[3\] SUM/test_process_group.py:\d+~.*' "
        "pending, which rank 1 did not submit",
        str(caught.value),
    )


@pytest.mark.procs
def test_rank_that_waits_in_backward_is_seen_to():
    run_ranks(2, uneven_data, backend="placet", timeout=30)


def backward_without_a_peer(_wire):
    net = DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = net(torch.ones(2, 4)).sum()
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # By way of C++, unless it was known to be gone when the call was made.
    with pytest.raises((RuntimeError, PeerLost), match="rank 1 is gone"):
        loss.backward()
    with pytest.raises(PeerLost, match="rank 1 is gone"):
        dist.barrier()


@pytest.mark.procs
def test_backward_ends_when_a_rank_is_killed():
    run_ranks(2, backward_without_a_peer, backend="placet", expect_death=[1])
