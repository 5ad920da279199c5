"""Any order, with priorities, over a carrier that matches moves by their order.

    wire = OrderedWire(C10dWire(), engine)              # NCCL or gloo, and the engine
    future = wire.submit(move, payload, key="grads.0")  # never blocks, in any order

NCCL and gloo hang, or mix up data, where ranks submit in different orders, and nothing
outside can stop a NCCL kernel that waits. So here no move is launched before all its
members have submitted it, and all ranks launch in one order:

    announce    each member tells rank 0, on the control wire     -> OrderedWire.submit
    order       rank 0 puts complete moves into one sequence      -> sequencer.Sequencer
    launch      each rank submits its part of it to the carrier   -> launching.Launcher

The price is one round trip on the control wire before a launch; it is hidden where
moves are submitted before their results are needed. docs/decisions/0013 says more.

# NOTE [What the ledger sees]
A large all-reduce or broadcast is launched as `chunks.chunks(move)`, between which a
more urgent move may go first. The pieces are cut so that what each rank sends and
receives in all of them is what the whole move predicts, to the byte; `traffic` gives
their sum. So the ledger books the move as it was submitted.
"""

import time
from collections.abc import Iterable
from itertools import count
from threading import Event, Lock

import torch
from torch import Tensor

from placet.boxing.moves import Move
from placet.errors import PeerLost, WireError, WireTimeout
from placet.wire.check import check_submission, result_size
from placet.wire.chunks import CHUNK_BYTES, chunks
from placet.wire.conducting import CONDUCTOR, Conductor
from placet.wire.engine.keys import fingerprint, full_text
from placet.wire.engine.wire import CLOSED, EngineWire
from placet.wire.interface import Capabilities, Future, Wire
from placet.wire.launching import Launched, Launcher, OrderedFuture, Submission
from placet.wire.ordered_messages import (
    FAIL,
    LAUNCH,
    TO_SEQUENCER,
    Announce,
    Define,
    Done,
    Expire,
    Said,
    pack,
    unpack_failure,
    unpack_numbers,
)
from placet.wire.sequencer import reporter

ANSWER_SECONDS = 1.0
"""So long rank 0 has to say why a submission was not launched."""

_CLOSE_POLL_SECONDS = 0.005


class OrderedWire(Wire):
    """Submits to a carrier in an order that all ranks agree on.

    All ranks make one at the same time. Keys should be few and static: rank 0 remembers
    each key of a group, for each member.

    Args:
        inner: the carrier, which needs one order; the wire owns it, and nobody else may
            submit to it.
        control: carries announcements and launches; the wire owns it. Its
            `timeout_seconds` is the deadline of each move.
        chunk_bytes: about how much of a large move goes at once; equal on all ranks.

    Raises:
        ValueError: the two wires do not join the same ranks.
        WireError: a rank is gone, or did not come in time.
    """

    def __init__(
        self, inner: Wire, control: EngineWire, *, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        here = control.rank, control.num_ranks
        if (inner.rank, inner.num_ranks) != here:
            raise ValueError(
                f"inner is rank {inner.rank} of {inner.num_ranks}, control is rank "
                f"{here[0]} of {here[1]}; join the same ranks in the same order"
            )
        self.rank, self.num_ranks = here
        self.capabilities = Capabilities(order_free=True, priorities=True)
        self.cluster = None
        self.chunk_bytes = chunk_bytes
        self._inner = inner
        self._control = control
        self._numbers = count()
        self._names: dict[tuple[Move, str], int] = {}
        self._in_flight: dict[int, OrderedFuture] = {}
        self._announcing = Lock()
        self._refusal: WireError | None = None
        self._launcher = Launcher(
            inner,
            check=self._look_for_lost,
            report=self._report,
            always=self.rank == CONDUCTOR,
        )
        self._conductor: Conductor | None = None
        control.listen(LAUNCH, lambda _, data: self._hear(LAUNCH, data))
        control.listen(FAIL, lambda _, data: self._hear(FAIL, data))
        if self.rank == CONDUCTOR:
            self._conductor = Conductor(control, self._hear)
        self._launcher.start()
        # Nobody may announce before rank 0 listens.
        control.exchange(b"", key="order agreement starts")

    @property
    def timeout_seconds(self) -> float:
        """From a move's submission until it counts as failed."""
        return self._control.timeout_seconds

    @timeout_seconds.setter
    def timeout_seconds(self, seconds: float) -> None:
        self._control.timeout_seconds = seconds

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> Future:
        """Announce a move; see `Wire.submit`. It never blocks.

        `wait` blocks until the move is launched, and on a GPU no longer: from then on
        the current stream follows the move.

        Raises:
            ValueError: a buffer does not fit the move.
            TypeError: the dtype cannot be reduced on a wire.
            WireError: rank 0 is gone, or the wire is closed.
        """
        check_submission(
            move,
            payload,
            out,
            key=key,
            rank=self.rank,
            num_ranks=self.num_ranks,
        )
        self._check_usable(key)
        if len(move.group) == 1:
            return self._inner.submit(move, payload, key=key, out=out)
        payload = payload.detach()
        if out is None:
            # On the caller's stream, which is the one that goes on to use it.
            out = payload.new_empty(result_size(move, self.rank))
        pieces = chunks(move, self.chunk_bytes)
        submission = Submission(
            next(self._numbers),
            key,
            move,
            pieces,
            payload,
            out.detach(),
            time.monotonic(),
            reports=len(pieces) > 1 and self.rank == reporter(move.group),
            ready=_mark(payload),
        )
        future = OrderedFuture(
            submission, self._launcher, self._expire, self._ended, self.timeout_seconds
        )
        self._in_flight[submission.number] = future
        self._launcher.add(submission)
        try:
            self._announce(submission, priority)
        except WireError as error:
            self._launcher.fail(submission.number, error)
            self._ended(submission)
            raise
        return future

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Nothing: a group is made when it is first used, in the agreed order."""

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        self._check_usable(f"exchange {key}")
        return self._control.exchange(value, key=key)

    def control_bytes(self) -> int:
        return self._control.control_bytes() + self._inner.control_bytes()

    def launch_order(self) -> tuple[Launched, ...]:
        """What this rank has launched of late, in order: keys, and pieces' places."""
        return tuple(self._launcher.order)

    def close(self) -> None:
        """Finish what is in flight, let the others finish, let go of all resources.

        Rank 0 stays until all others have closed, or for `timeout_seconds`: they may
        still need it. What they wait for rank 0 to submit fails at once.

        Raises:
            WireError: what was in flight failed.
        """
        if self._refusal is not None and self._refusal.args[0] == CLOSED:
            return
        failed: list[WireError] = []
        for future in list(self._in_flight.values()):
            try:
                future.wait()
            except WireError as error:
                failed.append(error)
        self._refusal = WireError(CLOSED)
        if self._conductor is not None:
            self._conductor.lose(self.rank, "it closed its wire")
            self._await_others()
        self._launcher.stop()
        try:
            self._inner.close()
        finally:
            self._control.close()
        if failed:
            raise failed[0]

    def _ended(self, submission: Submission) -> None:
        """`close` need not wait for it."""
        self._in_flight.pop(submission.number, None)

    def _announce(self, submission: Submission, priority: int) -> None:
        move, key = submission.move, submission.key
        # One message after the other: a name is defined before it is used.
        with self._announcing:
            name = self._names.get((move, key))
            if name is None:
                name = self._names[move, key] = len(self._names)
                num = len(submission.pieces)
                text = full_text(move) + (f" in {num} chunks" if num > 1 else "")
                agreed = fingerprint(move) ^ num
                self._say(Define(name, move.group, key, text, agreed, num))
            self._say(Announce(name, submission.number, priority))

    def _say(self, said: Said) -> None:
        if self._conductor is not None:
            self._conductor.hear(self.rank, said)
        else:
            self._control.tell(CONDUCTOR, TO_SEQUENCER, pack(said))

    def _hear(self, topic: str, message: bytes) -> None:
        """What rank 0 says; in the control wire's thread, which must not wait."""
        if topic == LAUNCH:
            self._launcher.launch(unpack_numbers(message))
        else:
            self._launcher.fail_next(*unpack_failure(message))

    def _report(self, number: int) -> None:
        try:
            self._say(Done(number))
        except WireError as error:
            self._refuse(error)

    def _expire(self, submission: Submission) -> None:
        """The deadline has passed: rank 0 knows who is missing, and tells all."""
        waited = time.monotonic() - submission.submitted
        self._say(Expire(submission.number, waited))
        changed = self._launcher.changed
        with changed:
            answered = changed.wait_for(lambda: submission.settled, ANSWER_SECONDS)
        if not answered:
            text = (
                f"rank {self.rank} waited {waited:.3g} s for a launch, and rank "
                f"{CONDUCTOR}, which orders all launches, does not answer: it is "
                "stopped, or its host is out of reach"
            )
            # Its launch may still come, on the others as well: the order is lost.
            self._refuse(WireTimeout(text))

    def _look_for_lost(self) -> None:
        """Fail what waits for a rank that is gone; in the launcher's thread."""
        if self._refusal is not None:
            self._refuse(self._refusal)
        gone = self._control.gone()
        if self._conductor is not None:
            for rank, cause in gone.items():
                self._conductor.lose(rank, cause)
        elif CONDUCTOR in gone:
            text = f"rank {CONDUCTOR}, which orders all launches, is gone"
            self._refuse(PeerLost(f"{text}: {gone[CONDUCTOR]}"))

    def _refuse(self, error: WireError) -> None:
        """No launch will come any more."""
        self._refusal = self._refusal or error
        for submission in self._launcher.waiting():
            text = f"{submission.what}: {error.args[0]}"
            self._launcher.fail(submission.number, type(error)(text))

    def _check_usable(self, key: str) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(f"key {key!r}: {self._refusal.args[0]}")

    def _await_others(self) -> None:
        deadline, pause = time.monotonic() + self.timeout_seconds, Event()
        while len(self._control.gone()) < self.num_ranks - 1:
            if time.monotonic() > deadline:
                return
            pause.wait(_CLOSE_POLL_SECONDS)


def _mark(payload: Tensor) -> torch.cuda.Event | None:
    """The caller's stream as it is now; see launching's NOTE [Streams]."""
    if not payload.is_cuda:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(payload.device))
    return event
