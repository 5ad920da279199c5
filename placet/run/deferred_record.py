"""The recorder: runs a constructor on fake tensors and writes down what fills memory.

reads, writes, overwrites of each operator           -> Recorder._record
what Python does to the generators in between        -> GeneratorWatch
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from placet.run.deferred_ops import (
    Op,
    Recording,
    covers_its_storage,
    map_tensors,
    tensors_in,
)
from placet.run.deferred_replay import evaluate
from placet.torch_private.dispatch import (
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    argument_names,
    generator_key,
    is_fake,
    mutated,
    without_modes,
)

aten = torch.ops.aten

# Write every element of their first argument and read none of it.
_RANDOM_FILLS = {
    aten.normal_.default,
    aten.uniform_.default,
    aten.exponential_.default,
    aten.geometric_.default,
    aten.cauchy_.default,
    aten.log_normal_.default,
    aten.bernoulli_.float,
    aten.random_.default,
    aten.random_.to,
    getattr(aten.random_, "from"),
}
_FILLS = _RANDOM_FILLS | {
    aten.zero_.default,
    aten.fill_.Scalar,
    aten.fill_.Tensor,
    aten.copy_.default,
}
_ALLOCATIONS = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
# Use nothing of their inputs but shape, dtype and layout.
_LIKES = {
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
}
_READS_TO_PYTHON = {aten._local_scalar_dense.default, aten.equal.default}


class GeneratorWatch:
    """Notices when Python sets a generator between the operators that draw from it.

    Recording draws nothing. Instead each recorded draw puts the generator in a state of
    its own; another state found later was set by Python, and one known from an earlier
    draw was set back to (as torch.random.fork_rng does).
    """

    def __init__(self) -> None:
        self._nonce = os.urandom(16)
        self._known: dict[bytes, int] = {}
        self._last: dict[int, bytes] = {}
        self._first: dict[int, tuple[torch.Generator, Tensor]] = {}
        self.change(torch.default_generator)
        self.mark(torch.default_generator, -1)

    def mark(self, generator: torch.Generator, index: int) -> None:
        """Give a generator the state that stands for "after operator `index`"."""
        digest = hashlib.blake2b(self._nonce + str(index).encode(), digest_size=8)
        generator.manual_seed(int.from_bytes(digest.digest(), "little") >> 1)
        state = _digest(_state_of(generator))
        self._known[state] = index
        self._last[generator_key(generator)] = state

    def change(self, generator: torch.Generator) -> Tensor | int | None:
        """What Python set a generator to since its last mark; see Op.rng_state."""
        state, key = _state_of(generator), generator_key(generator)
        self._first.setdefault(key, (generator, state))
        digest = _digest(state)
        if digest == self._last.get(key):
            return None
        return self._known.get(digest, state)

    def restore(self) -> None:
        """Put all generators back."""
        for generator, state in self._first.values():
            generator.set_state(state)


def _state_of(generator: torch.Generator) -> Tensor:
    with without_modes():
        return generator.get_state()


def _digest(state: Tensor) -> bytes:
    with without_modes():
        return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).digest()


class Recorder(TorchDispatchMode):
    """Runs operators on fake tensors and records those that write.

    Fake tensors, not meta ones: torch.nn.init does nothing to meta tensors.
    """

    def __init__(
        self, recording: Recording, watch: GeneratorWatch, fake_mode: FakeTensorMode
    ) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self._recording = recording
        self._watch = watch
        self._fake_mode = fake_mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        inputs = tensors_in((args, kwargs))
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if inputs and not is_random and not any(is_fake(t) for t in inputs):
            with without_modes():
                return func(*args, **kwargs)
        if func in _READS_TO_PYTHON:
            with without_modes():
                return evaluate(self._recording, func, self._stored(args))
        written = mutated(func, args, kwargs)
        if not all(is_fake(t) for t in written):
            raise ValueError(
                f"{func} writes deferred or random values into a tensor made by "
                "torch.tensor or from numpy; make it by torch.zeros or torch.empty"
            )
        if "device" in argument_names(func):
            kwargs["device"] = torch.device("cpu")
            kwargs.pop("pin_memory", None)
        out = func(*map_tensors(args, self._fake), **map_tensors(kwargs, self._fake))
        if func.overloadpacket is not aten.set_:  # changes a tensor, but no memory
            self._record(func, args, kwargs, written, is_random, tensors_in(out))
        return out

    def call_fill(
        self, function: Callable[..., Tensor], tensor: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Record a call that fills a tensor with random values, as one operator."""
        self._record(function, (tensor, *args), kwargs, [tensor], True, [tensor])
        return tensor

    def _fake(self, tensor: Tensor) -> Tensor:
        if is_fake(tensor):
            return tensor
        return self._fake_mode.from_tensor(tensor, static_shapes=True)

    def _record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: list[Tensor],
        is_random: bool,
        outputs: list[Tensor],
    ) -> None:
        number = self._recording.number
        uses = [t for t in tensors_in((args, kwargs)) if is_fake(t)]
        inputs = set() if func in _LIKES else {number(t) for t in uses}
        made = {number(t) for t in outputs} - {number(t) for t in uses}
        writes = {number(t) for t in written} | made
        if not writes or (func in _ALLOCATIONS and made):
            return
        if not inputs and outputs and "dtype" in argument_names(func):
            kwargs["dtype"] = outputs[0].dtype  # the default may be another at replay
        is_fill = func in _RANDOM_FILLS or not isinstance(func, OpOverload)
        reads, overwrites = set(inputs), set(made)
        if (func in _FILLS or is_fill) and covers_its_storage(args[0]):
            overwrites.add(number(args[0]))
            if all(number(t) != number(args[0]) for t in uses[1:]):
                reads.discard(number(args[0]))
        generator = None
        if is_random:
            generator = kwargs.get("generator") or torch.default_generator
        stored = map_tensors(args, meta_like) if func in _LIKES else self._stored(args)
        op = Op(
            func=func,
            args=stored,
            kwargs=self._stored(kwargs),
            outputs=tuple(self._recording.ref(t) for t in outputs),
            reads=frozenset(reads),
            writes=frozenset(writes),
            overwrites=frozenset(overwrites),
            is_fill=is_fill or not inputs,
            generator=generator,
            rng_state=None if generator is None else self._watch.change(generator),
        )
        self._recording.ops.append(op)
        if generator is not None:
            self._watch.mark(generator, len(self._recording.ops) - 1)

    def _stored(self, values: Any) -> Any:
        """Arguments with deferred tensors as references, and copies of real ones."""
        return map_tensors(values, self._stored_tensor)

    def _copy(self, tensor: Tensor) -> Tensor:
        with without_modes():
            return tensor.detach().clone()

    def _stored_tensor(self, tensor: Tensor) -> Any:
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError(
                "a lazily conjugated tensor cannot be deferred: resolve it"
            )
        return self._recording.ref(tensor) if is_fake(tensor) else self._copy(tensor)


def meta_like(tensor: Tensor) -> Tensor:
    """A meta tensor with another's shape, strides and dtype."""
    with without_modes():
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )
