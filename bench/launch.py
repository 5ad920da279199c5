"""From the command to the first step of four local workers, and their memory then.

Ours is `placet train char_gpt -n 4`, the peer `torchrun --nproc-per-node 4` with plain
DistributedDataParallel on the same model and text (bench/launch_ddp.py). Each is a new
command each time, in turn. Memory is that of all processes of a command together, each
shared page counted once (PSS), at its highest before the first step ends.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import ROOT, Options, Outcome, run_bench
from bench.ratios import exact_row, timed_row
from placet.settings import child_environment

QUESTION = "How long from the command to the first step of 4 local workers?"
NUM_RANKS = 4
TARGET_SECONDS = 8.0
LIMIT_SECONDS = 120.0
MARK = "LAUNCH_BENCH_MARK"
_POLL_SECONDS = 0.05
_MEMORY_POLLS = 5


@dataclass(frozen=True)
class Launched:
    """One launch: seconds until the first step, CPU seconds and memory by then."""

    seconds: float
    cpu_seconds: float
    memory_bytes: int


def collect(options: Options) -> Outcome:
    """Launch both sides in turn."""
    rounds = 1 if options.quick else 10
    ours: list[Launched] = []
    peer: list[Launched] = []
    for index in range(rounds):
        pair = [(ours, launch_ours), (peer, launch_peer)]
        for found, launch in pair if index % 2 == 0 else pair[::-1]:
            found.append(launch())
    seconds, peers = [x.seconds for x in ours], [x.seconds for x in peer]
    memory = statistics.median(x.memory_bytes for x in ours)
    peer_memory = statistics.median(x.memory_bytes for x in peer)
    rows = (
        exact_row(
            "first step after the command, against 8 s",
            statistics.median(seconds),
            TARGET_SECONDS,
            unit="s",
            most=1.0,
        ),
        timed_row("the same, against torchrun with DDP", seconds, peers),
        timed_row(
            "CPU time of all processes",
            [x.cpu_seconds for x in ours],
            [x.cpu_seconds for x in peer],
        ),
        exact_row("memory of all processes (PSS)", memory, peer_memory, unit="bytes"),
    )
    spread = f"{min(seconds):.1f} to {max(seconds):.1f} s"
    note = (
        f"medians of {rounds} launches each, ours {spread}; 1 thread a worker, "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    )
    return Outcome(rows, (note,))


def launch_ours() -> Launched:
    """`placet train char_gpt -n 4`, to its first step."""
    with tempfile.TemporaryDirectory(prefix="placet-bench-") as folder:
        record = Path(folder) / "run" / "events-rank0.jsonl"
        command = ["placet", "train", "char_gpt", "-n", str(NUM_RANKS)]
        return _launch(
            [*command, "--run-dir", str(record.parent)],
            lambda output: _first_step_of(record),
            Path(folder),
        )


def launch_peer() -> Launched:
    """torchrun and DDP, to the first step."""
    with tempfile.TemporaryDirectory(prefix="placet-bench-") as folder:
        command = ["torch.distributed.run", "--nproc-per-node", str(NUM_RANKS)]
        return _launch([*command, "-m", "bench.launch_ddp"], _printed, Path(folder))


def _first_step_of(record: Path) -> float | None:
    """When the first step of a run ended (seconds since 1970), once it has."""
    if not record.exists():
        return None
    lines = record.read_text().split("\n")[:-1]
    found = {event["kind"]: event for event in map(json.loads, lines[::-1])}
    if "step" not in found:
        return None
    return float(found["start"]["time_unix"] + found["step"]["t"])


def _printed(output: Path) -> float | None:
    for line in output.read_text().splitlines():
        if line.startswith("first step "):
            return float(line.split()[-1])
    return None


def _launch(
    module: Sequence[str], first_step: Callable[[Path], float | None], folder: Path
) -> Launched:
    mark = uuid.uuid4().hex
    output = folder / "output"
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), MARK: mark}
    with output.open("wb") as file:
        began = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=child_environment(threads),
            start_new_session=True,
        )
        try:
            return _watch(process, began, mark, lambda: first_step(output), output)
        finally:
            process.kill()
            process.wait()
            for pid in _marked(mark):  # torchrun's workers outlive it
                os.kill(pid, signal.SIGKILL)


def _watch(
    process: subprocess.Popen[bytes],
    began: float,
    mark: str,
    first_step: Callable[[], float | None],
    output: Path,
) -> Launched:
    memory_bytes = polls = 0
    while True:
        if polls % _MEMORY_POLLS == 0:
            memory_bytes = max(memory_bytes, sum(map(_pss_bytes, _marked(mark))))
        polls += 1
        ended = first_step()
        if ended is not None:
            cpu_seconds = sum(map(_cpu_seconds, _marked(mark)))
            return Launched(ended - began, cpu_seconds, memory_bytes)
        if process.poll() is not None or time.time() - began > LIMIT_SECONDS:
            how = f"exit code {process.poll()}, after {time.time() - began:.0f} s"
            raise RuntimeError(f"no first step ({how}):\n{output.read_text()}")
        time.sleep(_POLL_SECONDS)


def _marked(mark: str) -> list[int]:
    """Processes that inherited a mark in their environment."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended, or is another user's
            if sought in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def _cpu_seconds(pid: int) -> float:
    """Of a process and of those of its children that have ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    ticks = stat.rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _pss_bytes(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended
    lines = [line.split() for line in rollup.splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[0] == "Pss:")


if __name__ == "__main__":
    sys.exit(run_bench("launch", QUESTION, collect))
