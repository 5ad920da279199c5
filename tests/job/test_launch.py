"""The launcher's promises, seen from outside: exit codes, messages, no orphans."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from placet.job.elastic import describe
from placet.job.forkserver import threads_per_worker
from placet.job.interrupt import SAME_PRESS_SECONDS, is_same_press
from placet.job.launch import launch
from placet.job.process import cores
from placet.job.worker import Failure
from tests.job.processes import assert_gone

PROGRAM = Path(__file__).with_name("launch_program.py")
END_SECONDS = 5.0
LIMIT_SECONDS = 90.0


@contextmanager
def started(mode: str, num_ranks: int = 2) -> Iterator[subprocess.Popen[str]]:
    """The program, ended for certain; after a time-out its output ends early."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), mode, str(num_ranks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the test's own Ctrl-C does not reach it
    )
    watch = threading.Timer(LIMIT_SECONDS, process.kill)
    watch.start()
    try:
        yield process
    finally:
        watch.cancel()
        process.kill()
        process.communicate()


def worker_pids(process: subprocess.Popen[str], num_ranks: int) -> dict[int, int]:
    """Each rank's process id, once all have started."""
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(num_ranks)]
    assert all(len(line) == 2 for line in lines), process.communicate()[1]
    return {int(rank): int(pid) for rank, pid in lines}


@pytest.mark.procs
def test_launch_returns_what_ranks_return():
    with started("return", 3) as process:
        pids = worker_pids(process, 3)
        out, err = process.communicate()
    threads = str(threads_per_worker(3))
    assert out == f"returned {[(rank, threads) for rank in range(3)]}\n"
    assert err == ""
    assert process.returncode == 0
    assert sorted(pids) == [0, 1, 2]
    assert_gone(list(pids.values()), END_SECONDS)


@pytest.mark.procs
def test_launch_raising_rank_is_told_first_and_ends_the_others():
    with started("raise", 3) as process:
        pids = worker_pids(process, 3)
        began = time.monotonic()
        _, err = process.communicate()
        seconds = time.monotonic() - began
    assert process.returncode == 1
    assert seconds < END_SECONDS
    assert err.startswith("rank 1 of 3 failed first\n\nTraceback (most recent call")
    assert "in fail_on_purpose\n" in err
    assert "ValueError: boom\nin two lines\n" in err
    assert "worker.py" not in err
    assert "torch/distributed" not in err
    assert err.count("Traceback") == 1
    assert_gone(list(pids.values()), END_SECONDS)


@pytest.mark.procs
def test_launch_killed_rank_is_named():
    with started("kill") as process:
        pids = worker_pids(process, 2)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err.startswith("rank 1 of 2 was killed by SIGKILL")
    assert_gone(list(pids.values()), END_SECONDS)


@pytest.mark.procs
def test_launch_workers_die_with_a_killed_launcher():
    with started("wait") as process:
        pids = worker_pids(process, 2)
        process.kill()
        assert_gone(list(pids.values()), END_SECONDS)


@pytest.mark.procs
def test_launch_first_interrupt_stops_second_kills():
    with started("stop") as process:
        pids = worker_pids(process, 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0
    assert out.startswith("returned [(0, ")
    assert err.strip() == (
        "stopping after this step, saving; press Ctrl-C again to quit at once"
    )
    assert_gone(list(pids.values()), END_SECONDS)


@pytest.mark.procs
def test_launch_second_interrupt_kills():
    with started("wait") as process:
        pids = worker_pids(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("stopping after")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2 * SAME_PRESS_SECONDS)  # sooner, it would be the same press
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert_gone(list(pids.values()), END_SECONDS)


@pytest.mark.procs
@pytest.mark.prove
def test_launch_terminate_ends_the_workers():
    with started("wait") as process:
        pids = worker_pids(process, 2)
        process.terminate()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert_gone(list(pids.values()), END_SECONDS)


def test_launch_refuses_no_ranks():
    with pytest.raises(ValueError, match="at least 1 worker, got 0"):
        launch(print, 0)


def test_launch_refuses_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port {port} cannot be used.*in use"):
            launch(print, 2, port=port)


def test_launch_threads_share_the_cores():
    assert threads_per_worker(1) == cores()
    assert threads_per_worker(10 * cores()) == 1


def failure(rank: int, time_unix: float, summary: str) -> Failure:
    return Failure(rank, time_unix, summary, f"Traceback of {rank}\n{summary}\n")


def test_describe_ranks_that_failed_alike():
    text = describe(
        [failure(2, 1.0, "E: x"), failure(0, 1.1, "E: x"), failure(1, 1.2, "W: peer")],
        {0: 1},
        3,
        None,
    )
    assert text == (
        "rank 2 of 3 failed first\n\nTraceback of 2\nE: x\n\n"
        "rank 0 failed alike\nrank 1 failed after it: W: peer"
    )


def test_describe_killed_rank_before_those_that_lost_it():
    text = describe([failure(0, 1.0, "R: lost")], {1: -9}, 2, "runs/x")
    assert text == (
        "rank 1 of 2 was killed by SIGKILL, as when memory runs out; it raised nothing "
        "(its output: runs/x/rank1.log)\nrank 0 failed after it: R: lost"
    )


def test_interrupt_signals_close_together_are_one_press():
    times = [10.0]
    assert not is_same_press(times)
    times.append(10.1)
    assert is_same_press(times)
    assert times == [10.0]
    times.append(10.5)
    assert not is_same_press(times)
    assert times == [10.0, 10.5]
