"""Ctrl-C in a worker: the first one asks the job to stop after its step, and save.

`install` replaces SIGINT's handler; `requested` is what `Job.fit` asks after each step
(and agrees on with the other ranks, since the signal reaches them at different times).
A second Ctrl-C ends the process at once, unsaved.
"""

import os
import signal
import sys
import time
from types import FrameType

STOPPING = "stopping after this step, saving; press Ctrl-C again to quit at once"
EXIT_CODE = 130
"""What a shell reports for a program that Ctrl-C ended: 128 + SIGINT."""

SHOW_CURSOR = "\x1b[?25h"

SAME_PRESS_SECONDS = 0.2
"""Signals closer than this are one press: wrappers such as `timeout` pass theirs on."""

_times: list[float] = []
_announces = False


def requested() -> bool:
    """Whether this process has been asked to stop after its step."""
    return bool(_times)


def install(*, announce: bool = True) -> None:
    """From now on, Ctrl-C only sets a flag; called in the main thread of a worker.

    Args:
        announce: say so on stderr; False where a launcher says it for all its workers.
    """
    global _announces
    _announces = announce
    _times.clear()
    signal.signal(signal.SIGINT, _on_interrupt)


def is_same_press(times: list[float]) -> bool:
    """Whether the last of these signals only repeats the one before it; drops it then.

    Args:
        times: when the signals came, in seconds.
    """
    is_same = len(times) > 1 and times[-1] - times[-2] < SAME_PRESS_SECONDS
    if is_same:
        del times[-1]
    return is_same


def say(text: str) -> None:
    """A line on stderr, written in one piece: safe inside a signal handler."""
    over_the_echo = "\r" if sys.stderr.isatty() else ""
    os.write(sys.stderr.fileno(), f"{over_the_echo}{text}\n".encode())


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    _times.append(time.monotonic())
    if is_same_press(_times):
        return
    if len(_times) == 1:
        if _announces:
            say(STOPPING)
        return
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), SHOW_CURSOR.encode())
    os._exit(EXIT_CODE)
