"""A wire with an in-order queue, as a CUDA stream is one: each move waits for the last.

    wire = FifoWire(engine)      # what is submitted starts when all before it is done

Ranks that submit in different orders then wait for each other for ever, whatever
carries the bytes. It is the baseline that the engine is measured against.
"""

from collections import deque
from collections.abc import Callable, Iterable
from threading import Condition, Thread

from torch import Tensor

from placet.boxing.moves import Move
from placet.errors import WireError
from placet.wire.interface import Capabilities, Future, Traffic, Wire


class FifoWire(Wire):
    """Hands the next move to another wire when the one before it has ended.

    Args:
        wire: carries the moves.
    """

    def __init__(self, wire: Wire) -> None:
        self.rank = wire.rank
        self.num_ranks = wire.num_ranks
        self.capabilities = Capabilities(order_free=False, priorities=False)
        self.cluster = wire.cluster
        self._wire = wire
        self._queue: deque[QueuedFuture] = deque()
        self._changed = Condition()
        self._closing = False
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> Future:
        """Queue a move; see `Wire.submit`. The priority is not heeded."""

        def start() -> Future:
            return self._wire.submit(move, payload, key=key, out=out)

        future = QueuedFuture(start, self._changed)
        with self._changed:
            self._queue.append(future)
            self._changed.notify_all()
        return future

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        self._wire.prepare(groups)

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        return self._wire.exchange(value, key=key)

    def control_bytes(self) -> int:
        return self._wire.control_bytes()

    def close(self) -> None:
        """Finish the queue; the wire below is the caller's to close."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        failed: WireError | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                future = self._queue.popleft()
            failed = future.carry(failed)


class QueuedFuture(Future):
    """A move that has its turn later.

    Args:
        start: hands it to the wire.
        changed: tells those who wait.
    """

    def __init__(self, start: Callable[[], Future], changed: Condition) -> None:
        self._start = start
        self._changed = changed
        self._inner: Future | None = None
        self._result: Tensor | WireError | None = None

    def carry(self, failed: WireError | None) -> WireError | None:
        """Start the move and wait for it; what has failed, this or one before it."""
        result: Tensor | WireError
        try:
            if failed is not None:
                raise failed
            self._inner = self._start()
            result = self._inner.wait()
        except WireError as error:
            result = failed = error
        with self._changed:
            self._result = result
            self._changed.notify_all()
        return failed

    def done(self) -> bool:
        with self._changed:
            return self._result is not None

    def wait(self) -> Tensor:
        with self._changed:
            self._changed.wait_for(lambda: self._result is not None)
        if isinstance(self._result, WireError):
            raise self._result
        assert self._result is not None
        return self._result

    def traffic(self) -> Traffic:
        assert self._inner is not None, "ask once it is done"
        return self._inner.traffic()
