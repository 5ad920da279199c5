"""`placet doctor`: what this machine has for training; or what happened in a run."""

import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from placet.job.doctor_run import read_evidence, tell
from placet.job.doctor_tables import show
from placet.job.lab import lab_missing
from placet.job.process import cores


@dataclass(frozen=True)
class Finding:
    """One line of the examination.

    Args:
        subject: what was looked at.
        text: what was found.
        is_lacking: something placet could use is not there.
    """

    subject: str
    text: str
    is_lacking: bool = False


def examine() -> int:
    """Print the findings; 0 if one machine can train, 1 if not."""
    found = list(findings())
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in found:
        mark = "[yellow]lacks[/]" if finding.is_lacking else "[green]ok[/]"
        table.add_row(mark, finding.subject, finding.text)
    Console(highlight=False).print(table)
    return int(any(f.is_lacking and f.subject == "gloo" for f in found))


def explain_run(run: Path) -> int:
    """Print what happened in a run, from its folder; 0.

    Raises:
        ValueError: it is no run's folder.
    """
    show(tell(read_evidence(run)), Console(highlight=False))
    return 0


def findings() -> Iterator[Finding]:
    """What there is: software, cores, memory, communication, the lab."""
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("torch", torch.__version__, not torch.__version__.startswith("2.13"))
    yield Finding("cores", f"{cores()} of {os.cpu_count()}")
    yield Finding("memory", _memory_text())
    gpus = torch.cuda.device_count()
    names = {torch.cuda.get_device_name(i) for i in range(gpus)}
    yield Finding("gpus", f"{gpus} ({', '.join(names)})" if gpus else "none")
    problem = _gloo_problem()
    yield Finding("gloo", problem or "carries an all-reduce", problem is not None)
    missing = lab_missing()
    yield Finding("lab", missing or "root, iproute2 and tbf", missing is not None)


def _memory_text() -> str:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page_bytes / 2**30
    free = os.sysconf("SC_AVPHYS_PAGES") * page_bytes / 2**30
    return f"{total:.1f} GiB, {free:.1f} GiB free"


def _gloo_problem() -> str | None:
    if not dist.is_gloo_available():
        return "this torch was built without gloo"
    with tempfile.TemporaryDirectory() as folder:
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
            )
        except RuntimeError as error:
            return str(error).splitlines()[0]
        try:
            ones = torch.ones(4)
            dist.all_reduce(ones)
            return None if ones.sum() == 4 else "an all-reduce gave a wrong sum"
        finally:
            dist.destroy_process_group()
