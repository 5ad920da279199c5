"""Ctrl-C in a worker: the first one asks the job to stop after its step, and save.

`install` replaces SIGINT's handler; `requested` is what `Job.fit` asks after each step
(and agrees on with the other ranks, since the signal reaches them at different times).
A second Ctrl-C ends the process at once, unsaved.
"""

import os
import signal
import sys
from types import FrameType

STOPPING = "stopping after this step, saving; press Ctrl-C again to quit at once"
EXIT_CODE = 130
"""What a shell reports for a program that Ctrl-C ended: 128 + SIGINT."""

SHOW_CURSOR = "\x1b[?25h"

_signals: list[int] = []
_announces = False


def requested() -> bool:
    """Whether this process has been asked to stop after its step."""
    return bool(_signals)


def install(*, announce: bool = True) -> None:
    """From now on, Ctrl-C only sets a flag; called in the main thread of a worker.

    Args:
        announce: Say so on stderr; False where a launcher says it for all its workers.
    """
    global _announces
    _announces = announce
    _signals.clear()
    signal.signal(signal.SIGINT, _on_interrupt)


def uninstall() -> None:
    """Gives Ctrl-C its usual meaning back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _signals.clear()


def say(text: str) -> None:
    """A line on stderr, written in one piece: safe inside a signal handler."""
    over_the_echo = "\r" if sys.stderr.isatty() else ""
    os.write(sys.stderr.fileno(), f"{over_the_echo}{text}\n".encode())


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    _signals.append(signum)
    if len(_signals) == 1:
        if _announces:
            say(STOPPING)
        return
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), SHOW_CURSOR.encode())
    os._exit(EXIT_CODE)
