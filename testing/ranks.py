"""Run one function as every rank of a job: in threads (fast) or in processes (real).

    def twice(wire, x):
        move = AllReduce((0, 1), 1, torch.float64)
        return wire.submit(move, x, key="x").wait()

    run_threads(2, twice, torch.ones(1, dtype=torch.float64))      # -> [2., 2.]
    run_ranks(2, twice, torch.ones(1, dtype=torch.float64))        # the same, on gloo

Both return the results by rank, or raise what the rank that failed first raised, with
its traceback as a note. Process tests carry the marker `procs`.
"""

import sys
import time
import traceback
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

import torch

from placet.wire.twin import Twin
from testing.failures import Failure, RankDied, describe_error, raise_first

T = TypeVar("T")


def run_threads(
    num_ranks: int,
    fn: Callable[..., T],
    *args: Any,
    timeout: float = 30.0,
    wire_timeout: float | None = None,
) -> list[T]:
    """Run `fn(wire, *args)` as every rank, each a thread of this process, on a twin.

    The ranks share `args`, torch's global random generator and its default dtype.

    Args:
        num_ranks: how many ranks.
        fn: gets its rank's wire first.
        args: the same objects for all ranks.
        timeout: seconds until a rank that still runs counts as failed.
        wire_timeout: the twin's own deadline in seconds; 80% of `timeout` if left out.

    Raises:
        RankDied: a rank did not end in time; its stack is in the message.
    """
    twin = Twin(num_ranks, timeout_seconds=wire_timeout or 0.8 * timeout)
    results: dict[int, T] = {}
    failures: list[Failure] = []
    with_grad = torch.is_grad_enabled()

    def run(rank: int) -> None:
        torch.set_grad_enabled(with_grad)
        try:
            results[rank] = fn(twin.wire(rank), *args)
        except BaseException as error:
            text, now = describe_error(error), time.monotonic()
            failures.append(Failure(rank, error, text, now))
            twin.lose(rank, f"raised {type(error).__name__}: {error}")
        else:
            twin.lose(rank, "returned and will submit nothing more")

    threads = [
        Thread(target=run, args=(rank,), name=f"rank{rank}", daemon=True)
        for rank in range(num_ranks)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hung = [
        Failure(rank, RankDied(f"still running after {timeout:g} s"), _stack(t), 1e300)
        for rank, t in enumerate(threads)
        if t.is_alive()
    ]
    raise_first(failures + hung, num_ranks)
    return [results[rank] for rank in range(num_ranks)]


def _stack(thread: Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "(no stack)"
