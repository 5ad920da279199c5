"""What a call of torch.distributed returns: a handle on the moves it became."""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Condition, Event, Lock, Thread
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.futures import Future as TorchFuture

from placet.errors import PlacetError, WireTimeout
from placet.torch_private.c10d import Work, fail_future
from placet.wire.daemons import GATE
from placet.wire.process_group_keys import in_callback_of


class MoveFuture(Protocol):
    """A future of a wire that can call back; see `placet.wire.interface.Future`."""

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""

    def wait(self) -> Tensor:
        """The result, flat."""

    def on_done(self, callback: Callable[[Any], None]) -> None:
        """Call back, with the future, once it is done or has failed."""


class Helpers:
    """Threads that finish calls whose owner does not wait for them.

    What a program attaches to a future (`then`) runs in them, and may itself wait for
    a collective, as PowerSGD's hook does. In the wire's own thread that would stop all
    others, and a fixed number of threads could all be waiting: so there is always one
    that is idle, made when needed.
    """

    _KEEP_SECONDS = 2.0

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], None]] = deque()
        self._changed = Condition()
        self._num_idle = 0

    def run(self, task: Callable[[], None]) -> None:
        """Run a task soon, in some thread."""
        with self._changed:
            self._tasks.append(task)
            if self._num_idle >= len(self._tasks):
                self._changed.notify()
                return
        Thread(target=self._work, name="placet-helper", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._num_idle += 1
                found = self._changed.wait_for(lambda: self._tasks, self._KEEP_SECONDS)
                self._num_idle -= 1
                if not found:
                    return
                task = self._tasks.popleft()
            with GATE:
                task()
                del task  # it holds tensors


_HELPERS = Helpers()


class HelperFuture(TorchFuture[Any]):
    """A future of torch's whose callbacks run in a helper's thread, and only there.

    See NOTE [Callbacks] in `process_group_keys`.

    Args:
        key: of the call whose future it is.
    """

    def __init__(self, key: str) -> None:
        TorchFuture.__init__(self)
        self._key = key

    def then(self, callback: Callable[[Any], Any]) -> "HelperFuture":
        """What `callback(self)` gives, once this is done."""
        following = HelperFuture(self._key)

        def run(done: Any) -> None:
            try:
                following.set_result(callback(done))
            except Exception as error:  # whoever waits for it raises it
                fail_future(following, error)

        self.add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(self)` once this is done."""

        def run() -> None:
            with in_callback_of(self._key):
                callback(self)

        TorchFuture.add_done_callback(self, lambda _: _HELPERS.run(run))


class WireWork(Work):
    """A call under way.

    Args:
        futures: of its moves.
        finish: turns their results into the call's, once.
        outputs: the tensors that then hold it.
        what: names the call, for errors.
        source: the sender of what is received.
    """

    def __init__(
        self,
        futures: Sequence[MoveFuture],
        finish: Callable[[Sequence[Tensor]], None] | None,
        outputs: list[Any],
        *,
        what: str,
        source: int = -1,
    ) -> None:
        Work.__init__(self)
        self._futures: Sequence[MoveFuture] = futures
        self._finish = finish
        self._outputs = outputs
        self._what = what
        self._source = source
        self._settling = Lock()
        self._is_settled = False
        self._error: Exception | None = None
        self._torch_future: TorchFuture[Any] | None = None

    def finish_by_itself(self) -> None:
        """Finish as soon as the moves are done, though nobody waits."""
        self._when_done(lambda: _HELPERS.run(self._settle))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the results are there.

        Args:
            timeout: 0 means the wire's own deadline.

        Raises:
            WireError: it failed; or the time is up.
        """
        seconds = timeout.total_seconds()
        if seconds > 0 and not self._is_settled:
            self._wait_at_most(seconds)
        self._settle()
        if self._error is not None:
            raise _raisable(self._error)
        return True

    def synchronize(self) -> None:
        """As `wait`: there is no stream on a CPU."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if not self._is_settled and all(each.done() for each in self._futures):
            self._settle()
        return self._is_settled

    def is_success(self) -> bool:
        """Whether it is done and did not fail."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Why it failed, or None."""
        return self._error if self.is_completed() else None

    def result(self) -> list[Any]:
        """The tensors that hold the results, once waited for."""
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """The sender's rank in the group, of a receive."""
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> "TorchFuture[Any]":
        """A future of torch's, which a helper's thread completes."""
        with self._settling:
            if self._torch_future is not None:
                return self._torch_future
            future = HelperFuture(self._what)
            self._torch_future = future
            is_settled = self._is_settled
        if is_settled:
            self._complete(future)
        else:
            self.finish_by_itself()
        return future

    def _wait_at_most(self, seconds: float) -> None:
        done = Event()
        self._when_done(done.set)
        if not done.wait(seconds):
            raise WireTimeout(f"{self._what}: not done after {seconds:g} s of waiting")

    def _when_done(self, callback: Callable[[], None]) -> None:
        """Call back once all moves have ended."""
        left = len(self._futures)
        if not left:
            callback()
            return
        counting = Lock()

        def one_ended(_: object) -> None:
            nonlocal left
            with counting:
                left -= 1
                is_last = left == 0
            if is_last:
                callback()

        for future in self._futures:
            future.on_done(one_ended)

    def _settle(self) -> None:
        """Wait for the moves, then finish; one thread does, others wait for it."""
        with self._settling:
            if self._is_settled:
                return
            try:
                results = [future.wait() for future in self._futures]
                if self._finish is not None:
                    with torch.no_grad():
                        self._finish(results)
            except Exception as error:  # `wait` and the future of torch raise it
                self._error = error
            self._finish = None
            self._futures = ()
            self._is_settled = True
            future = self._torch_future
        if future is not None:
            self._complete(future)

    def _complete(self, future: "TorchFuture[Any]") -> None:
        if self._error is not None:
            fail_future(future, self._error)
        else:
            future.set_result(self._outputs)


def _raisable(error: Exception) -> Exception:
    """A copy: an error that is raised twice would keep all frames of the first time."""
    return type(error)(*error.args) if isinstance(error, PlacetError) else error
