"""Training on the engine beside training on gloo: DDP, unchanged, and placet's own Job.

    DDP on torch.distributed's backend "placet"   beside DDP on "gloo"
    placet.Job on the engine                      beside the same Job on gloo

Two workers of one thread each on one machine; the same model, rows and optimizer on all
sides, which step in turn in the same processes. All workers begin a step behind a
barrier; a step takes as long as the slower worker.
"""

import sys
from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist

from bench.collectives import agree
from bench.ddp_overhead import TASKS, ddp_step, our_step
from bench.harness import (
    Measured,
    Options,
    Outcome,
    Side,
    measure,
    of_ranks,
    rows_of,
    run_bench,
)
from bench.ratios import Row
from bench.wires import KINDS, WireKind, open_group, open_wire
from placet.wire.interface import Wire
from testing.ranks import run_ranks

QUESTION = "What does a training step cost on the engine beside gloo (2 workers)?"
NUM_RANKS = 2
MOST = 1.0


def collect(options: Options) -> Outcome:
    """Rows of DDP and of Job; a quick look has the small model only."""
    rows: list[Row] = []
    tasks = TASKS[:1] if options.quick else TASKS
    budget_seconds = options.budget_seconds / (2 * len(tasks))
    for index, task in enumerate(tasks):
        for name, time_sides in (("DDP", time_ddp), ("Job", time_job)):
            given = (index, options, budget_seconds)
            found = run_ranks(NUM_RANKS, time_sides, *given, timeout=900)
            measured = of_ranks([cast(Measured, rank) for rank in found])
            rows += rows_of(measured, f"{task.name}, {name}", most=MOST)
    return Outcome(tuple(rows), ("One thread per worker; links not slowed down.",))


def time_ddp(
    gloo: Wire, index: int, options: Options, budget_seconds: float
) -> Measured:
    """On one rank: DDP on our backend, on gloo, and on gloo again."""
    torch.set_num_threads(1)
    task = TASKS[index]
    group = open_group(cast(WireKind, options.wire))
    ours = ddp_step(task, gloo, group)
    control = ddp_step(task, gloo, open_group("gloo"))
    sides = (ours, ddp_step(task, gloo), control)
    return _timed(sides, options, budget_seconds)


def time_job(
    gloo: Wire, index: int, options: Options, budget_seconds: float
) -> Measured:
    """On one rank: a Job on our wire, on gloo, and on gloo again."""
    torch.set_num_threads(1)
    task = TASKS[index]
    wire = open_wire(cast(WireKind, options.wire))
    sides = (our_step(task, wire, 0), our_step(task, gloo, 0), our_step(task, gloo, 0))
    measured = _timed(sides, options, budget_seconds)
    wire.close()
    return measured


def _timed(
    steps: tuple[Callable[[], object], ...], options: Options, budget_seconds: float
) -> Measured:
    ours, peer, control = steps
    return measure(
        Side("placet", ours),
        Side("gloo", peer),
        Side("gloo again", control),
        num_pairs=options.num_pairs,
        budget_seconds=budget_seconds,
        num_warm_up=3,
        agree=agree,
        align=dist.barrier,
    )


if __name__ == "__main__":
    sys.exit(run_bench("training_wire", QUESTION, collect, wires=KINDS))
