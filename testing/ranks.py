"""Run one function as every rank of a job: in threads (fast) or in processes (real).

    def twice(wire, x):
        move = AllReduce((0, 1), 1, torch.float64)
        return wire.submit(move, x, key="x").wait()

    run_threads(2, twice, torch.ones(1, dtype=torch.float64))      # -> [2., 2.]
    run_ranks(2, twice, torch.ones(1, dtype=torch.float64))        # the same, on gloo

Both return the results by rank, or raise what the rank that failed first raised, with
its traceback as a note. Process tests carry the marker `procs`.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from threading import Thread
from typing import Any, Literal, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from placet.torch_private.c10d import TCPStore, default_store
from placet.wire.c10d import C10dWire
from placet.wire.engine.connect import connect_engine
from placet.wire.interface import Wire
from placet.wire.torch_store import TorchStore
from placet.wire.twin import Twin
from testing.failures import Failure, RankDied, describe_error, raise_first
from testing.processes import collect, start_rank

T = TypeVar("T")

Carrier: TypeAlias = Literal["c10d", "native", "plain"]


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


def run_ranks(
    num_ranks: int,
    fn: Callable[..., T],
    *args: Any,
    timeout: float = 60.0,
    wire_timeout: float | None = None,
    check_order: bool = False,
    backend: str = "gloo",
    carrier: Carrier = "c10d",
    expect_death: Collection[int] = (),
) -> list[T | None]:
    """Run `fn(wire, *args)` as every rank, each a process, on gloo.

    Default dtype and grad mode are those of the caller; torch has one thread a rank.

    Args:
        num_ranks: how many ranks.
        fn: a function at a module's top level; its result is pickled.
        args: pickled for each rank.
        timeout: seconds until ranks that still run are killed.
        wire_timeout: the wire's own deadline in seconds; 80% of `timeout` if left out.
        check_order: see `C10dWire`.
        backend: torch.distributed's name of it; with NCCL each rank takes one device.
        carrier: which wire: that of the backend, or the engine with one of its cores.
        expect_death: ranks that shall end without a result, which then is None.

    Raises:
        RankDied: a rank was killed, did not end in time, or lives against expectation.
        TypeError: `fn` or its arguments cannot be pickled.
    """
    # The store lives here: it outlasts every rank, and no port is chosen by hand.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    deadline = wire_timeout or 0.8 * timeout
    running = []
    try:
        for rank in range(num_ranks):
            place = (
                rank,
                num_ranks,
                store.port,
                deadline,
                check_order,
                backend,
                carrier,
            )
            running.append(start_rank(rank, _as_rank, place, fn, args))
    except BaseException:
        collect(running, 0.0)
        raise
    outcomes = collect(running, timeout)
    failures = []
    for rank, outcome in outcomes.items():
        died = outcome.failure is not None and isinstance(
            outcome.failure.error, RankDied
        )
        if outcome.failure is not None and not (died and rank in expect_death):
            failures.append(outcome.failure)
        elif rank in expect_death and not died:
            alive = running[rank].failed("ended normally, but was expected to die")
            assert alive.failure is not None
            failures.append(alive.failure)
    raise_first(failures, num_ranks)
    return [outcomes[rank].result for rank in range(num_ranks)]


def _as_rank(
    place: tuple[int, int, int, float, bool, str, Carrier],
    fn: Callable[..., T],
    args: Any,
) -> T:
    rank, num_ranks, port, wire_timeout, check_order, backend, carrier = place
    limit = timedelta(seconds=wire_timeout)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=num_ranks, timeout=limit
    )
    if "nccl" in backend:
        torch.cuda.set_device(rank)
    # No rank may die while another still connects to it: gloo would fail to start.
    if store.add("connected", 1) == num_ranks:
        store.set("all connected", "")
    store.wait(["all connected"])
    wire: Wire
    if carrier == "c10d":
        wire = C10dWire(timeout_seconds=wire_timeout, check_order=check_order)
    else:
        wire = connect_engine(
            TorchStore(default_store(), "engine"),
            rank,
            num_ranks,
            timeout_seconds=wire_timeout,
            core=carrier,
        )
    try:
        return fn(wire, *args)
    finally:
        if carrier != "c10d":
            wire.close()
        dist.destroy_process_group()


def _stack(thread: Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "(no stack)"
