"""The lab's processes: one per rank, streamed while they run, stopped together."""

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from placet.errors import LabError

OnLine = Callable[[int, str], None]
"""Told each rank's lines as they come: on_line(rank, line)."""

_KEPT_LINES = 20_000
_TAIL_LINES = 5
_GRACE_SECONDS = 2.5
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Start:
    """How to start one rank."""

    namespace: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    core: int | None = None


@dataclass(frozen=True)
class Ended:
    """How the ranks ended.

    Args:
        exit_codes: per rank; negative is the signal that ended it.
        output: per rank, its last 20,000 lines.
        first_failed: the first rank that ended with an error, or None.
    """

    exit_codes: tuple[int, ...]
    output: tuple[str, ...]
    first_failed: int | None


@dataclass
class _Rank:
    process: subprocess.Popen[bytes]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    partial: bytes = b""


def run(starts: Sequence[Start], timeout_seconds: float, on_line: OnLine) -> Ended:
    """Run one process per rank to the end of all, or of the first that fails.

    Raises:
        LabError: ranks still ran after `timeout_seconds`; all are stopped.
        KeyboardInterrupt: Ctrl-C; the ranks got it first, and 2.5 s to save.
    """
    ranks: list[_Rank] = []
    with selectors.DefaultSelector() as selector:
        try:
            for rank, start in enumerate(starts):
                ranks.append(_start(start))
                stdout = ranks[rank].process.stdout
                assert stdout is not None
                os.set_blocking(stdout.fileno(), False)
                selector.register(stdout, selectors.EVENT_READ, rank)
            first_failed = _follow(ranks, selector, timeout_seconds, on_line)
            if first_failed is not None:
                code = ranks[first_failed].process.returncode
                on_line(
                    first_failed, f"ended with exit code {code}; stopping the others"
                )
                _stop(ranks, signal.SIGTERM, selector, on_line)
        except KeyboardInterrupt:
            _stop(ranks, signal.SIGINT, selector, on_line)
            raise
        finally:
            _kill(ranks)
            _read(ranks, selector, on_line, wait_seconds=0)
            _close(ranks, on_line)
    return Ended(
        exit_codes=tuple(r.process.returncode for r in ranks),
        output=tuple("\n".join(r.lines) for r in ranks),
        first_failed=first_failed,
    )


def _start(start: Start) -> _Rank:
    # The kernel kills the rank when the lab dies, however it dies.
    bound = ("setpriv", "--pdeathsig", "KILL", "--")
    pinned = () if start.core is None else ("taskset", "-c", str(start.core))
    inside = ("ip", "netns", "exec", start.namespace)
    process = subprocess.Popen(
        (*bound, *pinned, *inside, *start.command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(start.environment),
        start_new_session=True,
    )
    return _Rank(process)


def _follow(
    ranks: Sequence[_Rank],
    selector: selectors.BaseSelector,
    timeout_seconds: float,
    on_line: OnLine,
) -> int | None:
    """Stream until all have ended well or one has not; returns the one that has not."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        _read(ranks, selector, on_line, wait_seconds=_POLL_SECONDS)
        codes = [rank.process.poll() for rank in ranks]
        for index, code in enumerate(codes):
            if code not in (None, 0):
                return index
        if all(code == 0 for code in codes):
            return None
        if time.monotonic() > deadline:
            raise LabError(_late(ranks, codes, timeout_seconds))


def _late(
    ranks: Sequence[_Rank], codes: Sequence[int | None], timeout_seconds: float
) -> str:
    running = [index for index, code in enumerate(codes) if code is None]
    last = list(ranks[running[0]].lines)[-_TAIL_LINES:]
    return (
        f"ranks {running} still ran after {timeout_seconds:g} s and were stopped; "
        f"give more time, or a faster link. Rank {running[0]}'s last lines: "
        + (" | ".join(last) or "none")
    )


def _read(
    ranks: Sequence[_Rank],
    selector: selectors.BaseSelector,
    on_line: OnLine,
    wait_seconds: float,
) -> None:
    if not selector.get_map():
        time.sleep(wait_seconds)
        return
    while ready := selector.select(wait_seconds):
        for key, _ in ready:
            index: int = key.data
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                selector.unregister(key.fileobj)
                continue
            *whole, partial = (ranks[index].partial + chunk).split(b"\n")
            ranks[index].partial = partial
            for line in whole:
                _say(ranks, index, line, on_line)
        if not selector.get_map() or wait_seconds > 0:
            return


def _say(ranks: Sequence[_Rank], index: int, line: bytes, on_line: OnLine) -> None:
    text = line.decode(errors="replace").rstrip("\r")
    ranks[index].lines.append(text)
    on_line(index, text)


def _stop(
    ranks: Sequence[_Rank],
    first: signal.Signals,
    selector: selectors.BaseSelector,
    on_line: OnLine,
) -> None:
    """Ask the ranks to end, and give them a moment; `_kill` ends the rest."""
    for rank in ranks:
        _signal(rank, first)
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        if all(rank.process.poll() is not None for rank in ranks):
            return
        _read(ranks, selector, on_line, wait_seconds=_POLL_SECONDS)


def _kill(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        _signal(rank, signal.SIGKILL)
    for rank in ranks:
        rank.process.wait(timeout=_GRACE_SECONDS)


def _signal(rank: _Rank, number: signal.Signals) -> None:
    if rank.process.poll() is None:
        try:
            os.killpg(rank.process.pid, number)
        except ProcessLookupError:
            return  # it ended by itself just now


def _close(ranks: Sequence[_Rank], on_line: OnLine) -> None:
    for index, rank in enumerate(ranks):
        if rank.partial:
            _say(ranks, index, rank.partial, on_line)
        assert rank.process.stdout is not None
        rank.process.stdout.close()
