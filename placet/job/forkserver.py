"""The process that workers are forked from: it imports torch once, for all of them.

Started before the launcher itself imports torch (this module imports none), the two
imports run side by side.
"""

import multiprocessing
import multiprocessing.forkserver
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from placet.job.process import cores

_PRELOAD = ["placet.job.forkserver_guard", "placet.job.forkserver_preload"]


def threads_per_worker(num_ranks: int) -> int:
    """Torch's threads in each of `num_ranks` workers that share this machine."""
    return max(1, cores() // num_ranks)


def start_forkserver(num_ranks: int) -> None:
    """Start the fork server, if it does not run yet; returns before it is ready."""
    threads = str(threads_per_worker(num_ranks))
    quiet = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
    multiprocessing.set_forkserver_preload(_PRELOAD)
    with _environment({"OMP_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": quiet}):
        multiprocessing.forkserver.ensure_running()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
