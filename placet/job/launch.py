"""Local workers in one call, through torch elastic's launcher.

    launch(train, 4, args=(request,))        # train(request) on ranks 0 to 3

Workers are forked from a server that has imported torch, so four of them start about
as fast as one. They end with this process, however it ends. The first Ctrl-C asks them
to stop after their step, a second one ends them.

Several machines need no launcher of ours: `torchrun ... -m placet train ...`.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from placet.job.elastic import run_agent
from placet.job.forkserver import start_forkserver, threads_per_worker
from placet.job.interrupt import SHOW_CURSOR, STOPPING, is_same_press, say
from placet.job.worker import Place

HOST = "127.0.0.1"
_LOGGERS = (
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.multiprocessing",
)


def launch(
    target: Callable[..., Any],
    num_ranks: int,
    *,
    args: tuple[Any, ...] = (),
    environment: Mapping[str, str] | None = None,
    logs: Path | None = None,
    port: int = 0,
) -> list[Any]:
    """Run `target(*args)` on `num_ranks` local workers and wait for them.

    Args:
        target: a module-level function; it and `args` are pickled.
        num_ranks: workers, at least 1; each gets cores // num_ranks threads.
        args: the target's arguments, the same on every rank.
        environment: variables to set in the workers, besides torchrun's.
        logs: existing folder that receives the output of ranks other than 0
            (rank<r>.log); None leaves all ranks' output on the screen.
        port: port of the rendezvous; 0 takes a free one.

    Returns:
        What each rank's target returned, by rank.

    Raises:
        ValueError: num_ranks is below 1, or the port is in use.
        RankFailed: a rank raised or was killed; its traceback is the message.
        KeyboardInterrupt: Ctrl-C twice; all workers have been killed.
    """
    if num_ranks < 1:
        raise ValueError(f"a job needs at least 1 worker, got {num_ranks}; use -n 1")
    _check_port_is_free(port)
    start_forkserver(num_ranks)

    with tempfile.TemporaryDirectory(prefix="placet-") as folder:
        place = Place(
            failures=folder,
            logs=None if logs is None else str(logs),
            threads=threads_per_worker(num_ranks),
            environment=tuple((environment or {}).items()),
        )
        with _quiet_loggers(), _interrupts_passed_on():
            return run_agent(target, num_ranks, args, place, f"{HOST}:{port}")


@contextmanager
def _interrupts_passed_on() -> Iterator[None]:
    """Ctrl-C goes to the workers once; the second kills them and is raised here."""
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    }
    times: list[float] = []

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        times.append(time.monotonic())
        if is_same_press(times):
            return
        workers = multiprocessing.active_children()
        if len(times) == 1 and workers:
            say(STOPPING)
            for worker in workers:
                if worker.pid is not None:
                    os.kill(worker.pid, signal.SIGINT)
            return
        for worker in workers:
            worker.kill()
        raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, on_interrupt)
    except ValueError as error:
        raise ValueError(
            "launch() was called outside the main thread, where Ctrl-C cannot be "
            "handled; call it from the main thread"
        ) from error
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if sys.stdout.isatty():  # a killed rank 0 may have left it hidden
            print(SHOW_CURSOR, end="", flush=True)


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Elastic's own log is left out: `RankFailed` says what a user needs."""
    silent = logging.NullHandler()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(silent)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(silent)
            logger.propagate = propagate


def _check_port_is_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ValueError(
                f"port {port} cannot be used for the rendezvous ({error.strerror}); "
                "leave port=0 to take a free one"
            ) from None
