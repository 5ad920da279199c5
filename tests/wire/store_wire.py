"""A slow, keyed, order-free wire: every payload goes through the store.

It stands in for the engine where a test is about what is above it.
"""

import time
from collections import Counter
from collections.abc import Callable
from threading import Event, Lock, Thread

import torch
from torch import Tensor

from placet.boxing.moves import Move
from placet.errors import WireTimeout
from placet.torch_private.c10d import Store, set_bytes
from placet.wire.check import check_submission, payload_size
from placet.wire.twin_moves import carry


class StoreFuture:
    def __init__(self, move: Move, key: str, names: list[str], out: Tensor | None):
        self.move, self.key, self.names, self.out = move, key, names, out
        self.ended = Event()
        self.error: WireTimeout | None = None
        self.callbacks: list[Callable[[object], None]] = []
        self.lock = Lock()

    def done(self) -> bool:
        return self.ended.is_set()

    def wait(self) -> Tensor:
        self.ended.wait()
        if self.error is not None:
            raise self.error
        assert self.out is not None
        return self.out

    def on_done(self, callback: Callable[[object], None]) -> None:
        with self.lock:
            if not self.done():
                self.callbacks.append(callback)
                return
        callback(self)

    def end(self) -> None:
        with self.lock:
            self.ended.set()
        for callback in self.callbacks:
            callback(self)


class StoreWire:
    def __init__(self, store: Store, rank: int, num_ranks: int, seconds: float):
        self.rank, self.num_ranks, self.seconds = rank, num_ranks, seconds
        self.store = store.clone()  # a connection of its own: others may block theirs
        self.num_submitted: Counter[tuple[tuple[int, ...], str]] = Counter()
        self.keys: list[str] = []
        self.pending: list[tuple[float, StoreFuture]] = []
        self.changed = Event()
        self.is_closed = False
        self.thread = Thread(target=self.progress, daemon=True)
        self.thread.start()

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
        notify: bool = False,
    ) -> StoreFuture:
        check_submission(move, payload, out, key=key, rank=self.rank)
        self.keys.append(key)
        self.num_submitted[move.group, key] += 1
        name = f"{move.group}/{key}#{self.num_submitted[move.group, key]}"
        names = [f"{name}/{member}" for member in move.group]
        mine = names[move.group.index(self.rank)]
        given = payload.detach().contiguous().view(torch.uint8)
        set_bytes(self.store, mine, b"x" + given.numpy().tobytes())
        future = StoreFuture(move, key, names, out)
        self.pending.append((time.monotonic() + self.seconds, future))
        self.changed.set()
        return future

    def progress(self) -> None:
        while not self.is_closed:
            self.changed.wait()
            for item in list(self.pending):
                deadline, future = item
                if self.store.check(future.names):
                    self.pending.remove(item)
                    self.finish(future)
                elif time.monotonic() > deadline:
                    self.pending.remove(item)
                    late = [n for n in future.names if not self.store.check([n])]
                    future.error = WireTimeout(f"key {future.key!r}: nothing at {late}")
                    future.end()
            if not self.pending:
                self.changed.clear()
            time.sleep(0.0005)

    def finish(self, future: StoreFuture) -> None:
        move = future.move
        payloads = []
        for member, name in zip(move.group, future.names, strict=True):
            data = bytearray(self.store.get(name))[1:]
            size = payload_size(move, member)
            found = torch.empty(size, dtype=move.dtype)
            if size:
                found = torch.frombuffer(data, dtype=move.dtype)
            payloads.append(found)
        result = carry(move, payloads)[0][move.group.index(self.rank)]
        future.out = result if future.out is None else future.out.copy_(result)
        future.end()

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()
        self.thread.join()


def connect_store_wire(
    store: Store, rank: int, num_ranks: int, seconds: float
) -> StoreWire:
    return StoreWire(store, rank, num_ranks, seconds)
