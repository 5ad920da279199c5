"""A small program on the launcher, run by tests/job/test_launch.py: `MODE NUM_RANKS`.

Each worker prints "<rank> <pid>" and then does what MODE says.
"""

import os
import signal
import sys
import threading

from placet.errors import RankFailed
from placet.job.interrupt import requested
from placet.job.launch import launch

LONG_SECONDS = 60.0


def work(mode: str) -> tuple[int, str]:
    """What a rank does; returns its rank and threads."""
    rank = int(os.environ["RANK"])
    os.write(1, f"{rank} {os.getpid()}\n".encode())
    if mode in ("raise", "kill") and rank == 1:
        if mode == "raise":
            fail_on_purpose()
        os.kill(os.getpid(), signal.SIGKILL)
    if mode in ("raise", "kill", "wait"):
        threading.Event().wait(LONG_SECONDS)
    if mode == "alike":
        raise ValueError("the same everywhere")
    while mode == "stop" and not requested():
        threading.Event().wait(0.01)
    return rank, os.environ["OMP_NUM_THREADS"]


def fail_on_purpose() -> None:
    raise ValueError("boom\nin two lines")


def main() -> None:
    mode, num_ranks = sys.argv[1], int(sys.argv[2])
    try:
        returned = launch(work, num_ranks, args=(mode,))
    except RankFailed as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"returned {returned}")


if __name__ == "__main__":
    main()
