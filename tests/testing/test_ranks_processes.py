"""Processes of the harness: results, the first failure, deaths and no orphans."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from placet.boxing.moves import AllReduce
from placet.errors import PeerLost
from testing.failures import RankDied
from testing.ranks import run_ranks

pytestmark = pytest.mark.procs


class Unpicklable(ValueError):
    """Takes two arguments, so pickle cannot rebuild it."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def total(wire, x):
    move = AllReduce(tuple(range(wire.num_ranks)), x.numel(), x.dtype)
    return wire.submit(move, x * (wire.rank + 1), key="total").wait()


def describe_self(wire):
    return wire.rank, os.getpid(), torch.get_default_dtype(), torch.get_num_threads()


def fail_on(wire, rank, error):
    if wire.rank == rank:
        raise error
    total(wire, torch.ones(1))


def fail_unpicklably(wire):
    raise Unpicklable("this", "that")


def die_on(wire, rank):
    if wire.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        total(wire, torch.ones(1))
    except PeerLost as error:
        return str(error)


def hang_with_child(wire, folder):
    os.fork()
    Path(folder, f"{wire.rank}.{os.getpid()}").touch()
    signal.pause()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_processes_results_by_rank():
    results = run_ranks(3, total, torch.ones(4, dtype=torch.float64))
    for result in results:
        torch.testing.assert_close(result, torch.full((4,), 6.0, dtype=torch.float64))


def test_processes_are_real_and_take_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        found = run_ranks(2, describe_self)
    finally:
        torch.set_default_dtype(torch.float32)
    ranks, pids, dtypes, threads = zip(*found, strict=True)
    assert ranks == (0, 1)
    assert len({os.getpid(), *pids}) == 3
    assert dtypes == (torch.float64, torch.float64)
    assert threads == (1, 1)


def test_processes_name_the_rank_that_failed_first():
    with pytest.raises(KeyError, match="the cause") as caught:
        run_ranks(3, fail_on, 1, KeyError("the cause"))
    note = caught.value.__notes__[0]
    assert note.startswith("rank 1 of 3 failed first:")
    assert "in fail_on" in note
    assert "rank 0 (PeerLost), rank 2 (PeerLost)" in note


def test_processes_an_error_that_pickle_cannot_carry():
    with pytest.raises(RuntimeError, match="Unpicklable: this and that"):
        run_ranks(1, fail_unpicklably)


def test_processes_a_lambda_is_refused():
    with pytest.raises(TypeError, match="use a function at a module's top level"):
        run_ranks(1, lambda wire: None)


def test_processes_a_death_is_named_by_its_signal():
    with pytest.raises(RankDied, match="SIGKILL and no result"):
        run_ranks(2, die_on, 1)


def test_processes_an_expected_death():
    survivor, dead = run_ranks(2, die_on, 1, expect_death=[1])
    assert dead is None
    assert "rank 1 is gone" in survivor


def test_processes_a_missing_death_is_a_failure():
    with pytest.raises(RankDied, match="expected to die"):
        run_ranks(2, total, torch.ones(1), expect_death=[1])


def test_processes_a_hang_is_killed_with_its_children(tmp_path):
    started = time.monotonic()
    with pytest.raises(RankDied, match="still running after 3 s"):
        run_ranks(2, hang_with_child, tmp_path, timeout=3)
    assert time.monotonic() - started < 20
    pids = [int(path.suffix[1:]) for path in tmp_path.iterdir()]
    assert len(pids) == 4
    deadline = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        pass
    assert not [pid for pid in pids if is_alive(pid)]
