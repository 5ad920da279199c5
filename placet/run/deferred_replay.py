"""Replay a recorded construction on real memory, holding as little as possible.

    needed(op)  its writes reach a final tensor            -> _needed
    order       draws in recorded order; what follows on a tensor at once, as far as it
                draws nothing                              -> _Replay._pull
    hand over   a storage after its last needed operator   -> _Replay._release

A draw whose result is overwritten later (default initialisation followed by
`model.apply(init)`) runs on scratch memory, to advance the generator, and is dropped.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from placet.run.deferred_ops import Op, Recording, TensorRef, map_tensors, tensors_in
from placet.torch_private.dispatch import OpOverload

_PULL_DEPTH = 50


class Memory:
    """The real storages of a replay, and how many bytes they took at most."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._storages: dict[int, UntypedStorage] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def view(self, ref: TensorRef) -> Tensor:
        """A tensor of the real storage; allocates it if need be."""
        if ref.storage not in self._storages:
            num_bytes = self._recording.num_bytes(ref.storage)
            self.put(ref.storage, torch.empty(num_bytes, dtype=torch.uint8))
        storage = self._storages[ref.storage]
        empty = torch.empty(0, dtype=ref.dtype)
        return empty.set_(storage, ref.offset, ref.size, ref.stride)

    def put(self, number: int, tensor: Tensor) -> None:
        """Take a tensor's storage as the one of a number."""
        self._storages[number] = tensor.untyped_storage()
        self.live_bytes += self._storages[number].nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def drop(self, number: int) -> None:
        """Let go of a storage."""
        self.live_bytes -= self._storages.pop(number).nbytes()

    def holds(self, number: int) -> bool:
        """Whether a storage is allocated."""
        return number in self._storages


def replay(
    recording: Recording,
    finals: Collection[int],
    done: Callable[[int, Memory], None],
) -> Memory:
    """Run what some storages need; `done(storage, memory)` once each is final."""
    return _Replay(recording, finals, done).run()


def evaluate(recording: Recording, func: OpOverload, args: Any) -> Any:
    """Compute now what Python wants to know of deferred tensors.

    Raises:
        ValueError: it depends on random numbers, which are drawn only later.
    """
    live: set[int] = set()

    def note(value: Any) -> Any:
        if isinstance(value, TensorRef):
            live.add(value.storage)
        return value

    map_tensors(args, note)
    chosen: list[Op] = []
    for op in reversed(recording.ops):
        if op.writes & live:
            chosen.append(op)
            live = (live - op.overwrites) | op.reads
    if any(op.is_random for op in chosen):
        raise ValueError(
            "the constructor reads a random value in Python (.item(), float(), if), "
            "and a deferred model draws it only later; draw it by Python's random, or "
            "keep it a tensor"
        )
    memory = Memory(recording)
    with torch.no_grad():
        for op in reversed(chosen):
            _execute(op, memory)
    return func(*map_tensors(args, lambda t: _real(t, memory)))


def _needed(ops: list[Op], finals: Collection[int]) -> dict[int, bool]:
    """The operators to run by index: True for their results, False for their draws."""
    live = set(finals)
    needed: dict[int, bool] = {}
    for i in reversed(range(len(ops))):
        op = ops[i]
        is_live = bool(op.writes & live)
        if is_live or (op.is_random and not op.is_fill):
            needed[i] = True
            live = (live - op.overwrites) | op.reads
        elif op.is_random:
            needed[i] = False
    return needed


class _Replay:
    """One replay: what has run, what waits, and the memory it takes."""

    def __init__(
        self,
        recording: Recording,
        finals: Collection[int],
        done: Callable[[int, Memory], None],
    ) -> None:
        self._recording = recording
        self._ops = recording.ops
        self._finals = finals
        self._done = done
        self._memory = Memory(recording)
        self._needed = _needed(self._ops, finals)
        self._has_run: set[int] = set()
        self._before: dict[int, set[int]] = {}
        self._after: dict[int, list[int]] = {}
        self._uses: dict[int, int] = {}
        self._saved_states: dict[int, Tensor] = {}
        self._link()

    def _link(self) -> None:
        """Which operators must precede which, by what they read and write."""
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for i in sorted(i for i, is_live in self._needed.items() if is_live):
            op = self._ops[i]
            before: set[int] = set()
            for s in op.reads | op.writes:
                self._uses[s] = self._uses.get(s, 0) + 1
                if s in writer:
                    before.add(writer[s])
            for s in op.writes:
                before.update(readers.pop(s, ()))
                writer[s] = i
            for s in op.reads:
                readers.setdefault(s, []).append(i)
            before.discard(i)
            self._before[i] = before
            for j in before:
                self._after.setdefault(j, []).append(i)

    def run(self) -> Memory:
        states = {op.rng_state for op in self._ops if isinstance(op.rng_state, int)}
        if isinstance(self._recording.end_state, int):
            states.add(self._recording.end_state)
        if -1 in states:
            self._saved_states[-1] = torch.default_generator.get_state()
        with torch.no_grad():
            for i in sorted(self._needed):
                if self._needed[i]:
                    self._run_op(i)
                else:
                    _draw(self._ops[i], self._saved_states)
                if i in states:
                    generator = self._ops[i].generator
                    assert generator is not None
                    self._saved_states[i] = generator.get_state()
        _set_state(
            torch.default_generator, self._recording.end_state, self._saved_states
        )
        for storage in self._finals:
            if storage not in self._uses:  # never written: uninitialised, as it was
                self._done(storage, self._memory)
                if self._memory.holds(storage):
                    self._memory.drop(storage)
        return self._memory

    def _run_op(self, i: int) -> None:
        if i in self._has_run:
            return
        op = self._ops[i]
        if op.generator is not None:
            _set_state(op.generator, op.rng_state, self._saved_states)
        _execute(op, self._memory)
        self._has_run.add(i)
        self._release(op)
        for j in self._after.get(i, ()):
            self._pull(j, _PULL_DEPTH)

    def _pull(self, i: int, depth: int) -> bool:
        """Run an operator ahead of its turn if nothing before it must draw."""
        if i in self._has_run:
            return True
        if self._ops[i].is_random or depth == 0:
            return False
        if not all(self._pull(j, depth - 1) for j in sorted(self._before[i])):
            return False
        self._run_op(i)
        return True

    def _release(self, op: Op) -> None:
        for storage in op.reads | op.writes:
            self._uses[storage] -= 1
            if self._uses[storage]:
                continue
            if storage in self._finals:
                self._done(storage, self._memory)
            if self._memory.holds(storage):
                self._memory.drop(storage)


def _execute(op: Op, memory: Memory) -> None:
    """Run an operator on real memory."""
    args, kwargs = map_tensors((op.args, op.kwargs), lambda t: _real(t, memory))
    out = op.func(*args, **kwargs)
    for ref, result in zip(op.outputs, tensors_in(out), strict=True):
        if memory.holds(ref.storage):
            continue  # in place, or a second view of one result
        if ref != TensorRef.of(result, ref.storage):
            # A kernel may lay its result out otherwise than its fake twin said.
            memory.view(ref).copy_(result)
        else:
            memory.put(ref.storage, result)


def _draw(op: Op, saved_states: dict[int, Tensor]) -> None:
    """Advance the generator as an operator would, on memory that is dropped."""
    assert op.generator is not None
    _set_state(op.generator, op.rng_state, saved_states)
    args, kwargs = map_tensors((op.args, op.kwargs), _scratch)
    op.func(*args, **kwargs)


def _set_state(
    generator: torch.Generator, state: Tensor | int | None, saved: dict[int, Tensor]
) -> None:
    if state is not None:
        generator.set_state(saved[state] if isinstance(state, int) else state)


def _real(value: Any, memory: Memory) -> Tensor:
    return memory.view(value) if isinstance(value, TensorRef) else value


def _scratch(value: Any) -> Tensor:
    if isinstance(value, TensorRef):
        return torch.empty_strided(value.size, value.stride, dtype=value.dtype)
    assert isinstance(value, Tensor)
    return value
