"""Torch elastic's agent, told what placet wants, and its failures made readable."""

import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from placet.errors import RankFailed
from placet.job.worker import Failure, Place, read_failures, read_pids, run_rank

# Workers die at once of SIGTERM, so this bounds only a worker that is stuck.
SHUTDOWN_SECONDS = 4
_POLL_SECONDS = 0.1
SUMMARY_CHARS = 160


def run_agent(
    target: Callable[..., Any],
    num_ranks: int,
    args: tuple[Any, ...],
    place: Place,
    endpoint: str,
) -> list[Any]:
    """Run the workers to their end; what they returned, by rank.

    Raises:
        RankFailed: the first rank that failed, with its traceback.
        SystemExit: this process was asked to end (SIGTERM, SIGHUP, SIGQUIT).
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        role="placet",
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        local_addr=endpoint.rpartition(":")[0],
        logs_specs=DefaultLogsSpecs(log_dir=tempfile.mkdtemp(dir=place.failures)),
        signals_to_handle="SIGTERM,SIGHUP,SIGQUIT",
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    try:
        with _stuck_workers_killed(place.failures):
            returned = elastic_launch(config, run_rank)(target, args, place)
    except ChildFailedError as error:
        failures = read_failures(place.failures)
        exits = {rank: f.exitcode for rank, f in error.failures.items()}
        raise RankFailed(describe(failures, exits, num_ranks, place.logs)) from None
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from None
    return [returned[rank] for rank in range(num_ranks)]


@contextmanager
def _stuck_workers_killed(failures: str) -> Iterator[None]:
    """Kill workers that outlive another's failure by 4 s; torch would wait for 30 s."""
    ended = threading.Event()

    def watch() -> None:
        while not any(Path(failures).glob("failure-*.json")):
            if ended.wait(_POLL_SECONDS):
                return
        if ended.wait(SHUTDOWN_SECONDS):
            return
        for pid in read_pids(failures):
            try:
                if os.getpgid(pid) == pid:  # each worker leads a group of its own
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended

    watcher = threading.Thread(target=watch, name="placet-stuck-workers")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def describe(
    failures: Sequence[Failure],
    exits: dict[int, int],
    num_ranks: int,
    logs: str | None,
) -> str:
    """What to tell the user, the first cause first.

    Args:
        failures: the accounts of ranks that raised, the earliest first.
        exits: exit codes the launcher saw first, by rank; below 0 it is a signal's.
        num_ranks: ranks of the job.
        logs: folder of the other ranks' output.
    """
    accounts = {failure.rank for failure in failures}
    killed = [rank for rank, code in exits.items() if rank not in accounts]
    if killed:
        first = killed[0]
        text = f"rank {first} of {num_ranks} {_ended(exits[first])}; it raised nothing"
        if logs is not None and first > 0:
            text += f" (its output: {logs}/rank{first}.log)"
        others = list(failures)
    elif failures:
        cause = failures[0]
        text = f"rank {cause.rank} of {num_ranks} failed first\n\n{cause.traceback}"
        if cause.says_all:
            text = cause.traceback
        others = list(failures[1:])
        alike = [f.rank for f in others if f.summary == cause.summary]
        if alike and not cause.says_all:
            text += f"\n{_ranks(alike)} failed alike"
        others = [f for f in others if f.rank not in alike]
    else:
        return f"the workers ended with {exits} and raised nothing"
    if others:
        summary = others[0].summary.splitlines()[0]
        short = summary if len(summary) <= SUMMARY_CHARS else summary[:SUMMARY_CHARS]
        text += f"\n{_ranks([f.rank for f in others])} failed after it: {short}"
    return text


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    memory = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{memory}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, sorted(ranks)))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"
