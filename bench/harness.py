"""How we measure: both sides in one run, step by step in turn, beside a control.

    ours     what we built
    peer     what it is compared with
    control  the peer once more, as another object: peer against itself should give 1,
             and how far it strays is what this machine's noise is worth

Each round runs one step of each side, in an order that changes from round to round. A
bench is a script whose last lines are

    if __name__ == "__main__":
        sys.exit(run_bench("ddp_overhead", QUESTION, collect))

where `collect(options)` returns an Outcome. The table goes to the terminal, the figures
with machine and command to bench/results/<name>-<date>.json, which docs/benchmarks.md
is made from. A target that the interval rules out makes the exit code 1.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import permutations
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.ratios import Row, timed_row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
QUICK_RESULTS = ROOT / "build" / "bench"
_ORDERS = tuple(permutations(range(3)))


@dataclass(frozen=True)
class Side:
    """One of the compared: its name and one step of it."""

    name: str
    step: Callable[[], object]


@dataclass(frozen=True)
class Samples:
    """What each step of one side took on this rank."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """The same number of steps of each side, paired by round."""

    ours: Samples
    peer: Samples
    control: Samples

    @property
    def num_pairs(self) -> int:
        """How many rounds were measured."""
        return len(self.ours.seconds)


@dataclass(frozen=True)
class Options:
    """What the command line asked for.

    Args:
        quick: end within 50 s, all in all.
        num_pairs: rounds wanted of each comparison.
        budget_seconds: rounds stop here, for all comparisons of the bench together.
        wire: which of the bench's wires is ours; "" where it offers no choice.
    """

    quick: bool
    num_pairs: int
    budget_seconds: float
    wire: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a bench found: its rows, and what a reader must know to read them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def measure(
    ours: Side,
    peer: Side,
    control: Side,
    *,
    num_pairs: int,
    budget_seconds: float,
    num_warm_up: int = 5,
    agree: Callable[[int], int] = int,
    align: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Measured:
    """Step the sides in turn and time every step.

    Args:
        ours, peer, control: the sides; a step ends when its work is done.
        num_pairs: rounds wanted.
        budget_seconds: fewer rounds where so many would take longer.
        num_warm_up: rounds before, not counted; they tell how long a round takes.
        agree: with several ranks, gives each the number that rank 0 came to.
        align: with several ranks, lets all begin a step together; called before each.
        clock, cpu_clock: what to time with, in seconds.
    """
    sides = (ours, peer, control)
    began = clock()
    for _ in range(num_warm_up):
        for side in sides:
            align()
            side.step()
    round_seconds = (clock() - began) / max(1, num_warm_up)
    rounds = agree(affordable(num_pairs, round_seconds, budget_seconds))
    seconds: tuple[list[float], ...] = ([], [], [])
    cpu_seconds: tuple[list[float], ...] = ([], [], [])
    for index in range(rounds):
        for place in _ORDERS[index % len(_ORDERS)]:
            align()
            start, cpu_start = clock(), cpu_clock()
            sides[place].step()
            seconds[place].append(clock() - start)
            cpu_seconds[place].append(cpu_clock() - cpu_start)
    samples = [
        Samples(tuple(s), tuple(c)) for s, c in zip(seconds, cpu_seconds, strict=True)
    ]
    return Measured(*samples)


def of_ranks(found: Sequence[Measured]) -> Measured:
    """One measurement of all ranks: of a step, the slowest's time and all CPU time."""

    def joined(sides: Sequence[Samples]) -> Samples:
        seconds = zip(*(side.seconds for side in sides), strict=True)
        cpu_seconds = zip(*(side.cpu_seconds for side in sides), strict=True)
        return Samples(tuple(map(max, seconds)), tuple(map(sum, cpu_seconds)))

    return Measured(
        ours=joined([rank.ours for rank in found]),
        peer=joined([rank.peer for rank in found]),
        control=joined([rank.control for rank in found]),
    )


def affordable(wanted: int, round_seconds: float, budget_seconds: float) -> int:
    """How many rounds fit the budget; at least 12, or the interval means nothing."""
    if round_seconds <= 0:
        return wanted
    return max(min(wanted, 12), min(wanted, int(budget_seconds / round_seconds)))


def rows_of(measured: Measured, name: str, *, most: float | None) -> tuple[Row, ...]:
    """Step time against the target, the control beside it, and CPU time."""
    ours, peer, control = measured.ours, measured.peer, measured.control
    rows = [
        timed_row(f"{name}: step time", ours.seconds, peer.seconds, most=most),
        timed_row(f"{name}: peer against itself", control.seconds, peer.seconds),
    ]
    if min(*ours.cpu_seconds, *peer.cpu_seconds) > 0:
        rows.append(timed_row(f"{name}: CPU time", ours.cpu_seconds, peer.cpu_seconds))
    return tuple(rows)


def run_bench(
    name: str,
    question: str,
    collect: Callable[[Options], Outcome],
    arguments: Sequence[str] | None = None,
    *,
    wires: Sequence[str] = (),
) -> int:
    """Run a bench from the command line.

    Args:
        name: of the script and its results.
        question: what it answers, in one sentence.
        collect: does the measuring.
        arguments: the command line; sys.argv when left out.
        wires: what `--wire` may name, the default first; none: there is no choice.

    Returns:
        The exit code: 0, or 1 when a target is missed or too noisy to tell.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=question
    )
    parser.add_argument("--quick", action="store_true", help="end within 50 s")
    parser.add_argument("--pairs", type=int, default=300, help="rounds (default 300)")
    if wires:
        parser.add_argument("--wire", choices=wires, default=wires[0])
    given = parser.parse_args(arguments)
    options = Options(
        quick=given.quick,
        num_pairs=min(given.pairs, 60) if given.quick else given.pairs,
        budget_seconds=15.0 if given.quick else 900.0,
        wire=given.wire if wires else "",
    )
    is_usual = not wires or options.wire == wires[0]
    began = time.monotonic()
    outcome = collect(options)
    result = as_json(name, question, outcome, options, time.monotonic() - began)
    keep = is_usual and not options.quick  # else it says little about what we claim
    path = write_result(result, RESULTS if keep else QUICK_RESULTS)
    print_table(question, outcome, wide_console())
    print(f"written to {path.relative_to(ROOT)}")
    return 0 if all(row.passes for row in outcome.rows) else 1


def wide_console() -> Console:
    """The terminal; 120 columns where output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def print_table(question: str, outcome: Outcome, console: Console) -> None:
    """Show the rows as a table, and the notes under it."""
    table = Table(title=question, title_justify="left")
    for column in ("", "ours", "peer", "ratio [95%]", "target", "verdict"):
        table.add_column(column, justify="left" if not column else "right")
    for row in outcome.rows:
        target = "" if row.most is None else f"<= {row.most:.4g}"
        verdict = row.verdict if row.passes else f"[bold red]{row.verdict}[/]"
        figures = (show(row.ours, row.unit), show(row.peer, row.unit))
        ratio_text = str(row.ratio).replace("[", r"\[")
        table.add_row(row.name, *figures, ratio_text, target, verdict)
    console.print(table)
    for note in outcome.notes:
        console.print(note, markup=False)


def show(value: float, unit: str) -> str:
    """A figure with its unit, short."""
    if unit == "s":
        return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "bytes":
        return f"{value / 2**20:.2f} MiB" if value >= 2**20 else f"{value:,.0f} B"
    return f"{value:,.4g} {unit}".strip()


def as_json(
    name: str, question: str, outcome: Outcome, options: Options, seconds: float
) -> dict[str, Any]:
    """A result as it is written down."""
    return {
        "name": name,
        "question": question,
        "date": datetime.date.today().isoformat(),
        "command": f"python -m bench.{name}{_flags(options)}",
        "machine": machine(),
        "commit": commit(),
        "quick": options.quick,
        "seconds": round(seconds, 1),
        "rows": [asdict(row) | {"verdict": row.verdict} for row in outcome.rows],
        "notes": list(outcome.notes),
    }


def _flags(options: Options) -> str:
    wire = f" --wire {options.wire}" if options.wire else ""
    return wire + (" --quick" if options.quick else "")


def write_result(result: dict[str, Any], folder: Path) -> Path:
    """Write a result to <folder>/<name>-<date>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['name']}-{result['date']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def commit() -> str:
    """The checked-out commit, with "+" where files differ from it; "" outside git."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run(
            [*git, "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return head.stdout.strip()


if __name__ == "__main__":
    sys.exit(__doc__)
