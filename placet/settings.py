"""The environment: the one place where placet reads it.

Ours, and there are no others (a test counts them):

    PLACET_RUN_DIR   the folder of this run; the launcher sets it for its workers

torchrun's, by which a process knows that it is a worker: RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

torch.distributed's, for the network interface between hosts: GLOO_SOCKET_IFNAME.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUN_DIR = "PLACET_RUN_DIR"

NAMES = (RUN_DIR,)
"""Every environment variable of placet's own."""


@dataclass(frozen=True)
class Worker:
    """What torchrun tells a worker about its place in the job."""

    rank: int
    num_ranks: int
    local_rank: int
    num_local_ranks: int
    master_address: str
    master_port: int


def worker() -> Worker | None:
    """This process's place in a job, or None where it was not started as a worker.

    Raises:
        ValueError: some of torchrun's variables are set, but not all, or not numbers.
    """
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if name not in os.environ]
    if "RANK" not in os.environ:
        return None
    if missing:
        raise ValueError(
            f"RANK={os.environ['RANK']} is set but {', '.join(missing)} not: a worker "
            f"needs {', '.join(needed)}; start it with torchrun or `placet train`, or "
            "unset RANK to run alone"
        )
    rank = _number("RANK")
    num_ranks = _number("WORLD_SIZE")
    if not 0 <= rank < num_ranks:
        raise ValueError(
            f"RANK={rank} does not fit WORLD_SIZE={num_ranks}: ranks are 0 to "
            f"{num_ranks - 1}"
        )
    return Worker(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=_number("LOCAL_RANK", default=rank),
        num_local_ranks=_number("LOCAL_WORLD_SIZE", default=num_ranks),
        master_address=os.environ["MASTER_ADDR"],
        master_port=_number("MASTER_PORT"),
    )


def network_interface() -> str | None:
    """The network interface by which other hosts reach this one, where one is named.

    It is gloo's variable, so that who has set it for gloo need set nothing else.
    """
    return os.environ.get("GLOO_SOCKET_IFNAME") or None


def cache_dir() -> Path:
    """Where what can be made again is kept for this user, such as compiled code."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "placet"


def run_dir() -> Path | None:
    """The folder of this run, where a launcher chose one."""
    given = os.environ.get(RUN_DIR)
    return Path(given) if given else None


def set_run_dir(folder: Path) -> None:
    """Make `folder` the folder of this run, here and in processes started later."""
    os.environ[RUN_DIR] = str(folder)


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: this process's own, and `extra` over it."""
    return {**os.environ, **extra}


def _number(name: str, default: int | None = None) -> int:
    given = os.environ.get(name)
    if given is None and default is not None:
        return default
    if given is None or not given.strip().isdecimal():
        raise ValueError(f"{name} must be a whole number, got {given!r}")
    return int(given)
