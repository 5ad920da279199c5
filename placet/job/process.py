"""A worker process that leaves nothing behind: it dies with whoever started it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, however it ends (Linux).

    On other systems nothing is set, and a launcher that is killed with SIGKILL leaves
    its workers to time out.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)


def log_output_to(path: str) -> None:
    """This process's stdout and stderr go to a file from now on, also those of C++."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if _HAS_AFFINITY else os.cpu_count() or 1


_HAS_AFFINITY = hasattr(os, "sched_getaffinity")
