"""The memory that tensors hold, watched while operators run."""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from placet.torch_private.dispatch import TorchDispatchMode, storage_key

__all__ = ["LiveStorages", "allocator_peak"]


Within = Callable[[Any, Sequence[Tensor], Sequence[Tensor]], int]


class LiveStorages(TorchDispatchMode):
    """While active, counts the storages of all tensors that operators meet.

    A storage counts from when an operator first makes or reads it until it is freed.
    What a kernel allocates within itself is not seen. Tensors on the meta device count
    as if they had memory.

    Args:
        within: says what a kernel allocates within itself: (operator, inputs, outputs).

    Attributes:
        live_bytes: of the storages that count now.
        place: where we are, for `peak_place`.
        peak_bytes: the most of them at once.
        full_peak_bytes: the most, with what `within` says.
    """

    def __init__(self, within: Within | None = None) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.within = within
        self.full_peak_bytes = 0
        self.place = ""
        self.live_bytes = 0
        self.peak_bytes = 0
        self.peak_place = ""
        self._known: dict[int, tuple[weakref.ref[UntypedStorage], int]] = {}
        self._lock = threading.RLock()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = list(_tensors((args, tuple((kwargs or {}).values()))))
        for tensor in given:
            self.hold(tensor)
        made = func(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            self.hold(tensor)
        if self.within is not None:
            more = self.within(func, given, list(_tensors(made)))
            self.full_peak_bytes = max(self.full_peak_bytes, self.live_bytes + more)
        return made

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage from now on, if it does not count yet."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        with self._lock:
            if key in self._known:
                return
            size = storage.nbytes()
            self._known[key] = weakref.ref(storage, self._forget(key)), size
            self.live_bytes += size
            if self.live_bytes > self.peak_bytes:
                self.peak_bytes, self.peak_place = self.live_bytes, self.place

    def _forget(self, key: int) -> Callable[[object], None]:
        def forget(_: object) -> None:
            with self._lock:
                _, size = self._known.pop(key)
                self.live_bytes -= size

        return forget


def allocator_peak(call: Callable[[], object]) -> int:
    """The most bytes that the CPU's allocator gave to a call at once.

    From its own record, so with what kernels take for themselves; of this thread.
    """
    torch_profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    )
    with torch_profiler:
        call()
    results = torch_profiler.profiler
    assert results is not None
    assert results.kineto_results is not None
    events: Any = results.kineto_results.events()  # the stubs lack `nbytes`
    changes = [
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]"
    ]
    live = peak = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        live += change
        peak = max(peak, live)
    return peak


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
