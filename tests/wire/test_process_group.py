"""The wire as a process group: each call of torch.distributed gives what gloo gives."""

import pytest
import torch
import torch.distributed as dist

import placet.wire.backend  # noqa: F401 (registers it)
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
