"""The native core: `Core` in C++, called through ctypes.

Calls that may wait (`wait`, `next_event`) let other Python threads run; the others are
so short that giving up the interpreter lock would cost more than they do.
"""

import ctypes
import time
import weakref
from collections.abc import Sequence
from functools import cache
from threading import Lock

import torch

from placet.errors import WireError
from placet.wire.engine.core import (
    Core,
    Counters,
    Event,
    EventKind,
    Link,
    State,
    Task,
)
from placet.wire.engine.frames import MESSAGE_BYTES
from placet.wire.engine.native.build import CannotBuild, library
from placet.wire.engine.schedule import Kind, Schedule

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
"""In the order of `Dtype` in reduce.h; any other travels as bytes."""

REDUCTIONS = ("sum", "max", "min", "prod")
"""In the order of `Reduction` in reduce.h."""

_DTYPE_CODES = {str(dtype): code for code, dtype in enumerate(DTYPES)}
_REDUCTION_CODES = {name: code for code, name in enumerate(REDUCTIONS)}
_PIECE_SECONDS = 0.1
_MOST_ENCODED = 4096

Encoded = tuple[int, int, int, ctypes.Array[ctypes.c_int64], int, object, int, int]
"""dtype, reduction, itemsize, rows, number of rows, follows, their number, scratch."""


class NativeCore(Core):
    """Moves bytes in C++, over shared memory within a host and sockets beyond.

    Args:
        peer: this process's own number.
        links: to all others.
        spin_seconds: how long a waiting rank looks for news before it sleeps; 0 where
            ranks outnumber cores.

    Raises:
        CannotBuild: there is no C++ compiler.
    """

    def __init__(
        self, peer: int, links: Sequence[Link], *, spin_seconds: float = 0.0
    ) -> None:
        self._fast, self._slow = _libraries()
        self._core: int | None = self._fast.placet_new(peer, spin_seconds)
        self._peers = tuple(link.peer for link in links)
        self._tasks: dict[int, Task] = {}
        self._encoded: dict[int, tuple[Schedule, Encoded]] = {}
        self._message = ctypes.create_string_buffer(MESSAGE_BYTES)
        self._counted = Counters(0, 0, 0)
        self._closing = Lock()
        for link in links:
            self._link(link)
        self._fast.placet_start(self._core)

    def _link(self, link: Link) -> None:
        numbers = [socket.detach() for socket in link.sockets]
        self._fast.placet_link(
            self._core,
            link.peer,
            (ctypes.c_int * len(numbers))(*numbers),
            len(numbers),
            link.send_memory,
            link.receive_memory,
            link.memory_bytes,
        )

    def submit(self, task: Task) -> int:
        core = self._open()
        dtype, reduction, itemsize, rows, num_rows, follows, num_follows, scratch = (
            self._encode(task.schedule)
        )
        handle: int = self._fast.placet_submit(
            core,
            task.collective,
            task.fingerprint,
            task.priority,
            task.notify,
            dtype,
            reduction,
            itemsize,
            rows,
            num_rows,
            follows,
            num_follows,
            task.payload.data_ptr(),
            task.out.data_ptr(),
            scratch,
        )
        assert handle, "a schedule names a peer that there is no link to"
        self._tasks[handle] = task  # its tensors live until `release`
        return handle

    def wait(self, handle: int, seconds: float) -> State:
        # In pieces, so that signals (Ctrl-C) are seen. A signal ends a piece early.
        deadline = time.monotonic() + seconds
        while True:
            core = self._core
            if core is None:
                return State.FAILED
            piece = min(seconds, _PIECE_SECONDS)
            state = self._slow.placet_wait(core, handle, piece)
            if state:
                return State(state)
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return State.PENDING

    def state(self, handle: int) -> State:
        return State(self._fast.placet_state(handle))

    def heard(self, handle: int) -> frozenset[int]:
        numbers = (ctypes.c_int * len(self._peers))()
        count = self._slow.placet_heard(self._open(), handle, numbers, len(self._peers))
        return frozenset(numbers[:count])

    def fail(self, handle: int) -> None:
        if self._core is not None:
            self._slow.placet_fail(self._core, handle)

    def release(self, handle: int) -> None:
        if self._core is not None and self._tasks.pop(handle, None) is not None:
            self._fast.placet_release(self._core, handle)

    def send(self, peer: int, message: bytes) -> None:
        if len(message) > MESSAGE_BYTES:
            raise ValueError(
                f"a message of {len(message)} bytes; at most {MESSAGE_BYTES} fit"
            )
        self._slow.placet_send(self._open(), peer, message, len(message))

    def next_event(self, seconds: float) -> Event | None:
        peer, handle = ctypes.c_int(), ctypes.c_uint64()
        num_bytes = ctypes.c_uint64()
        kind = self._slow.placet_next_event(
            self._open(),
            seconds,
            ctypes.byref(peer),
            ctypes.byref(handle),
            self._message,
            ctypes.byref(num_bytes),
        )
        if not kind:
            return None
        data = self._message.raw[: num_bytes.value]
        return Event(EventKind(kind), peer.value, handle.value, data)

    def advance(self, epoch: int, lost: frozenset[int]) -> None:
        numbers = (ctypes.c_int * len(lost))(*lost)
        self._slow.placet_advance(self._open(), epoch, numbers, len(lost))

    def counters(self) -> Counters:
        if self._core is not None:
            three = (ctypes.c_uint64 * 3)()
            self._fast.placet_counters(self._core, three)
            self._counted = Counters(*three)
        return self._counted

    def close(self) -> None:
        with self._closing:
            if self._core is not None:
                self._close(self._core)

    def _close(self, core: int) -> None:
        self.counters()
        self._slow.placet_close(core)
        self._core = None
        while self._tasks:
            handle, _ = self._tasks.popitem()
            self._fast.placet_release(core, handle)
        # Threads may be in a call still; each holds this object, and what is left (no
        # sockets, no rings) goes with it. Not at exit, where the system takes it.
        weakref.finalize(self, self._slow.placet_delete, core).atexit = False

    def _open(self) -> int:
        if self._core is None:
            raise WireError("the wire is closed; it carries nothing any more")
        return self._core

    def _encode(self, schedule: Schedule) -> Encoded:
        found = self._encoded.get(id(schedule))
        if found is None:
            if len(self._encoded) >= _MOST_ENCODED:
                self._encoded.clear()
            self._check_reduction(schedule)
            found = (schedule, _encoded(schedule))
            self._encoded[id(schedule)] = found
        return found[1]

    def _check_reduction(self, schedule: Schedule) -> None:
        # The reduction itself has no way to refuse: it would leave what was there.
        reduces = {Kind.REDUCE, Kind.RECEIVE_REDUCE}
        if not any(i.kind in reduces for i in schedule.instructions):
            return
        dtype = _DTYPE_CODES.get(schedule.dtype_name, len(DTYPES))
        if not self._fast.placet_can_reduce(
            dtype, _REDUCTION_CODES[schedule.reduction]
        ):
            raise ValueError(
                f"cannot reduce {schedule.dtype_name} by {schedule.reduction}; carry "
                "it in another dtype"
            )


def _encoded(schedule: Schedule) -> Encoded:
    rows: list[int] = []
    follows: list[int] = []
    for i in schedule.instructions:
        rows += (i.kind, i.peer, i.num_bytes, i.src.buffer, i.src.start)
        rows += (i.dst.buffer, i.dst.start, i.other.buffer, i.other.start)
        rows += (len(follows) // 2, len(i.follows))
        for pair in i.follows:
            follows += pair
    return (
        _DTYPE_CODES.get(schedule.dtype_name, len(DTYPES)),
        _REDUCTION_CODES[schedule.reduction],
        schedule.itemsize,
        (ctypes.c_int64 * len(rows))(*rows),
        len(schedule.instructions),
        (ctypes.c_uint64 * max(1, len(follows)))(*follows),
        len(follows) // 2,
        schedule.scratch_bytes,
    )


def check_usable() -> None:
    """Raise unless the native core can run here.

    Raises:
        CannotBuild: it cannot be compiled, or what was compiled cannot be loaded.
    """
    _libraries()


@cache
def _libraries() -> tuple[ctypes.PyDLL, ctypes.CDLL]:
    """The library twice: keeping Python's lock in a call, and giving it up."""
    path = str(library())
    try:
        fast, slow = ctypes.PyDLL(path), ctypes.CDLL(path)
    except OSError as error:  # such as a cache on a file system without execution
        raise CannotBuild(f"{path} cannot be loaded: {error}") from error
    address, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
    seconds = ctypes.c_double
    for lib in (fast, slow):
        lib.placet_new.restype = address
        lib.placet_new.argtypes = [number, seconds]
        lib.placet_link.argtypes = [
            address,
            number,
            address,
            number,
            number,
            number,
            size,
        ]
        lib.placet_start.argtypes = [address]
        lib.placet_submit.restype = size
        lib.placet_submit.argtypes = [
            address,
            size,
            size,
            number,
            number,
            number,
            number,
            ctypes.c_uint32,
            address,
            number,
            address,
            number,
            address,
            address,
            size,
        ]
        lib.placet_wait.argtypes = [address, size, seconds]
        lib.placet_state.argtypes = [size]
        lib.placet_heard.argtypes = [address, size, address, number]
        lib.placet_fail.argtypes = [address, size]
        lib.placet_release.argtypes = [address, size]
        lib.placet_send.argtypes = [address, number, ctypes.c_char_p, size]
        lib.placet_next_event.argtypes = [
            address,
            seconds,
            address,
            address,
            address,
            address,
        ]
        lib.placet_advance.argtypes = [address, ctypes.c_uint32, address, number]
        lib.placet_counters.argtypes = [address, address]
        lib.placet_close.argtypes = [address]
        lib.placet_delete.argtypes = [address]
        lib.placet_can_reduce.argtypes = [number, number]
    return fast, slow
