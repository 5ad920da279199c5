"""One rank's launches: a thread that submits moves to the carrier in the agreed order.

A submission waits here until its launches are named, one for each of its pieces. The
thread is the only one that submits to the carrier, so their order is that of the names.

# NOTE [Streams]
On a GPU the carrier's work must follow what the caller had queued when it submitted,
and what the caller queues after `wait` must follow the carrier's work. So `submit`
records an event on the caller's stream, and the thread launches on a stream of its own
that waits for this event. `wait` blocks until the launch (a stream can't wait for what
is not queued yet), puts the carrier's end into the launching stream, and lets the
caller's stream follow that one; it does not wait for the transfer. The carrier's
temporary buffers belong to the launching stream, so nobody reuses them too early.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from typing import TypeAlias

import torch
from torch import Tensor

from placet.boxing.moves import Move, describe
from placet.errors import WireError
from placet.wire.chunks import slices
from placet.wire.engine.futures import raisable
from placet.wire.interface import Future, Traffic, Wire

POLL_SECONDS = 5e-4
"""How often the end of a chunk is looked for, while another waits for it."""

CHECK_SECONDS = 0.03
"""How often lost ranks are looked for, while something waits for its launch."""

KEPT_LAUNCHES = 4096

Launched: TypeAlias = tuple[str, int]
"""A launch: the key, and which piece of its move."""


@dataclass(eq=False)
class Submission:
    """A move of this rank, from its submission until its last piece is launched.

    Args:
        number: this rank's number of it.
        key, move: what was submitted.
        pieces: what is launched.
        payload, out: the whole buffers.
        submitted: when, in seconds of the monotonic clock.
        reports: whether this rank says when a piece is done.
        ready: marks the caller's stream at the submission, on a GPU.
        launched: the carrier's futures, one for each piece launched.
        error: why the rest is not launched.
    """

    number: int
    key: str
    move: Move
    pieces: tuple[Move, ...]
    payload: Tensor
    out: Tensor
    submitted: float
    reports: bool
    ready: torch.cuda.Event | None
    launched: list[Future] = field(default_factory=list)
    error: WireError | None = None

    @property
    def what(self) -> str:
        """Key and move, as errors begin."""
        return f"key {self.key!r} ({describe(self.move)})"

    @property
    def settled(self) -> bool:
        """Whether nothing of it will be launched any more."""
        return self.error is not None or len(self.launched) == len(self.pieces)


class Launcher:
    """Launches the submissions of a rank.

    Args:
        carrier: matches moves by their order.
        check: called every `CHECK_SECONDS` while something waits, in the thread.
        report: called with a submission's number when one of its pieces is done.
        always: call `check` also while nothing waits here.
    """

    def __init__(
        self,
        carrier: Wire,
        *,
        check: Callable[[], None],
        report: Callable[[int], None],
        always: bool,
    ) -> None:
        self.changed = Condition()
        self.order: deque[Launched] = deque(maxlen=KEPT_LAUNCHES)
        self._carrier = carrier
        self._check = check
        self._report = report
        self._waiting: dict[int, Submission] = {}
        self._told: deque[tuple[int, WireError | None]] = deque()
        self._unreported: deque[tuple[int, Future]] = deque()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._always = always
        self._stopped = False
        self._checked = 0.0
        self._thread = Thread(target=self._run, name="placet-launcher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; nothing may wait for a launch."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()
        self._thread.join()

    def add(self, submission: Submission) -> None:
        """Take a submission, before it is announced."""
        with self.changed:
            self._waiting[submission.number] = submission
            self.changed.notify_all()

    def launch(self, numbers: list[int]) -> None:
        """The next places in the order are for these submissions."""
        with self.changed:
            self._told.extend((number, None) for number in numbers)
            self.changed.notify_all()

    def fail_next(self, number: int, error: WireError) -> None:
        """Fail a submission on all its members, after the launches told before.

        Were it failed at once, one that others launch could be left out here, and all
        later ones would meet the wrong partner.
        """
        with self.changed:
            self._told.append((number, error))
            self.changed.notify_all()

    def fail(self, number: int, error: WireError) -> None:
        """Launch no more of a submission, from now on."""
        with self.changed:
            submission = self._waiting.pop(number, None)
            if submission is not None:
                submission.error = error
                self.changed.notify_all()

    def waiting(self) -> list[Submission]:
        """What has pieces that are not launched."""
        with self.changed:
            return list(self._waiting.values())

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream of a device that launches go to."""
        with self.changed:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            return self._streams[device]

    def _run(self) -> None:
        while True:
            with self.changed:
                while not (self._told or self._stopped or self._is_due()):
                    self.changed.wait(self._seconds())
                told = self._told.popleft() if self._told else None
                stopped = self._stopped
            if told is not None:
                number, error = told
                if error is None:
                    self._launch(number)
                else:
                    self.fail(number, error)
            self._report_done()
            if told is None and stopped:
                return
            if self._must_check():
                self._checked = time.monotonic()
                self._check()

    def _is_due(self) -> bool:
        done = bool(self._unreported) and self._unreported[0][1].done()
        return done or self._must_check()

    def _must_check(self) -> bool:
        late = time.monotonic() - self._checked > CHECK_SECONDS
        return late and (self._always or bool(self._waiting))

    def _seconds(self) -> float | None:
        if self._unreported:
            return POLL_SECONDS
        return CHECK_SECONDS if self._always or self._waiting else None

    def _report_done(self) -> None:
        while self._unreported and self._unreported[0][1].done():
            self._report(self._unreported.popleft()[0])

    def _launch(self, number: int) -> None:
        with self.changed:
            submission = self._waiting.get(number)
        if submission is None:
            return  # it failed here, as the wire is of no more use
        place = len(submission.launched)
        try:
            future = self._submit(submission, place)
        except Exception as error:
            # This thread must go on: it carries everyone's moves.
            cause = error if isinstance(error, WireError) else None
            self.fail(number, cause or WireError(f"{submission.what}: {error}"))
            return
        self.order.append((submission.key, place))
        if submission.reports:
            self._unreported.append((number, future))
        with self.changed:
            submission.launched.append(future)
            if submission.settled:
                self._waiting.pop(number, None)
                self.changed.notify_all()

    def _submit(self, submission: Submission, place: int) -> Future:
        payload, out = submission.payload, submission.out
        if len(submission.pieces) > 1:
            here = slices(submission.pieces)[place]
            payload, out = payload[here], out[here]
        piece, key = submission.pieces[place], submission.key
        if submission.ready is None:
            return self._carrier.submit(piece, payload, key=key, out=out)
        stream = self.stream(payload.device)
        with torch.cuda.device(payload.device), torch.cuda.stream(stream):
            stream.wait_event(submission.ready)
            # Their memory must not be given to others while this stream needs it.
            payload.record_stream(stream)
            out.record_stream(stream)
            return self._carrier.submit(piece, payload, key=key, out=out)


class OrderedFuture(Future):
    """A move that is launched when its turn comes.

    Args:
        submission: the move.
        launcher: launches it.
        expire: called when the deadline has passed before all is launched; returns once
            the submission has failed, or is launched.
        ended: called when it has been waited for.
        timeout_seconds: from the submission to the deadline.
    """

    def __init__(
        self,
        submission: Submission,
        launcher: Launcher,
        expire: Callable[[Submission], None],
        ended: Callable[[Submission], None],
        timeout_seconds: float,
    ) -> None:
        self.submission = submission
        self._launcher = launcher
        self._expire = expire
        self._ended = ended
        self._finishing = Lock()
        self._deadline = submission.submitted + timeout_seconds

    def done(self) -> bool:
        submission = self.submission
        if submission.error is not None:
            return True
        return submission.settled and all(f.done() for f in submission.launched)

    def wait(self) -> Tensor:
        submission = self.submission
        if not submission.settled and not self._await_launch():
            self._expire(submission)
        self._ended(submission)
        if submission.error is not None:
            raise raisable(submission.error)
        with self._finishing:
            self._finish()
        return submission.out

    def traffic(self) -> Traffic:
        submission = self.submission
        if not submission.settled or submission.error is not None:
            raise WireError(f"{submission.what}: no traffic to report before wait")
        each = [future.traffic() for future in submission.launched]
        return Traffic(
            sum(t.sent_bytes for t in each), sum(t.received_bytes for t in each)
        )

    def _await_launch(self) -> bool:
        """Whether it was launched, or failed, before the deadline."""
        changed, submission = self._launcher.changed, self.submission
        with changed:
            left = self._deadline - time.monotonic()
            return changed.wait_for(lambda: submission.settled, max(0.0, left))

    def _finish(self) -> None:
        submission = self.submission
        if submission.ready is None:
            for future in submission.launched:
                future.wait()
            return
        device = submission.payload.device
        stream = self._launcher.stream(device)
        with torch.cuda.stream(stream):
            for future in submission.launched:
                future.wait()
        torch.cuda.current_stream(device).wait_stream(stream)
