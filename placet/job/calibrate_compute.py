"""`placet calibrate --compute`: what each rank computes while all others do too.

measure_compute   on each rank, all at once; the slowest rank's figures count,
                  since a step waits for it                  -> slowest
keep_machine      under the user's cache folder, for `placet plan`
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from placet.cost.machine import Machine, as_machine, keep_machine
from placet.cost.measure import measure
from placet.job import session
from placet.job.launch import launch
from placet.job.process import cores, die_with_parent
from placet.program.program import bytes_text
from placet.settings import worker

SECONDS = 15.0
"""How long each rank measures; the command as a whole stays under a minute."""


def calibrate_compute(num_ranks: int | None, seconds: float = SECONDS) -> int:
    """Measure with all ranks running, keep, print; the exit code for the shell.

    Args:
        num_ranks: local ranks; None: one a core, or those of torchrun.
        seconds: that each rank measures.

    Raises:
        ValueError: fewer than 1 rank, or not as many as torchrun has started.
        RankFailed: a local rank failed.
    """
    place = worker()
    if place is None:
        found: Machine = launch(
            measure_compute,
            cores() if num_ranks is None else num_ranks,
            args=(seconds,),
        )[0]
    else:
        if num_ranks not in (None, place.num_ranks):
            raise ValueError(
                f"-n {num_ranks} under torchrun, which has started {place.num_ranks} "
                "workers; leave -n out"
            )
        die_with_parent()
        found = measure_compute(seconds)
    if place is None or place.local_rank == 0:
        file = keep_machine(found)
        if place is None or place.rank == 0:
            print_machine(found, Console(highlight=False))
            print(f"machine: {file}", flush=True)
    return 0


def measure_compute(seconds: float) -> Machine:
    """Measure as one of the ranks of this job; all of them call it."""
    wire = session.current_wire()
    wire.exchange(b"", key="calibrate.begin")  # so that all measure at once
    mine = as_machine(measure(seconds), wire.num_ranks)
    found = wire.exchange(mine.to_json().encode(), key="calibrate.compute")
    session.close()
    return slowest([Machine.from_json(bytes(text).decode()) for text in found])


def slowest(machines: Sequence[Machine]) -> Machine:
    """The lowest rate of each kind among ranks.

    Raises:
        ValueError: they measured different things: the ranks' devices differ.
    """
    first = machines[0]
    kinds = [[row[:2] for row in machine.flops_per_s] for machine in machines]
    if any(kind != kinds[0] for kind in kinds):
        devices = sorted({machine.device for machine in machines})
        raise ValueError(
            f"ranks run on {devices} and measured different work; calibrate each kind "
            "of device alone"
        )
    rows = zip(*(machine.flops_per_s for machine in machines), strict=True)
    sizes = zip(*(machine.near for machine in machines), strict=True)
    return Machine(
        device=first.device,
        flops_per_s=tuple(min(row, key=lambda one: one[2]) for row in rows),
        memory_bytes_per_s=min(m.memory_bytes_per_s for m in machines),
        call_seconds=max(m.call_seconds for m in machines),
        num_ranks=first.num_ranks,
        boxing_seconds=max(m.boxing_seconds for m in machines),
        near=tuple(min(size, key=lambda one: one[1]) for size in sizes),
    )


def print_machine(machine: Machine, console: Console) -> None:
    """The figures of a rank as a table."""
    title = f"A rank of {machine.num_ranks} on {machine.device}, all at once"
    table = Table(title=title, title_justify="left")
    table.add_column("work", no_wrap=True)
    table.add_column("rate", justify="right")
    for work, dtype, rate in machine.flops_per_s:
        table.add_row(f"{work}, {dtype}", f"{rate / 1e9:.1f} Gflop/s")
    for num_bytes, rate in machine.near:
        table.add_row(f"memory, {bytes_text(num_bytes)}", f"{rate / 1e9:.2f} GB/s")
    table.add_row("memory", f"{machine.memory_bytes_per_s / 1e9:.2f} GB/s")
    table.add_row("a call", f"{machine.call_seconds * 1e6:.1f} us")
    table.add_row("a boxing", f"{machine.boxing_seconds * 1e6:.1f} us")
    console.print(table)
