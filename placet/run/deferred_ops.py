"""A recorded construction as data: operators over numbered storages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from placet.placement.layout import Shape
from placet.torch_private.dispatch import storage_key


@dataclass(frozen=True)
class TensorRef:
    """A tensor as a view of a numbered storage."""

    storage: int
    dtype: torch.dtype
    size: Shape
    stride: Shape
    offset: int

    @staticmethod
    def of(tensor: Tensor, storage: int) -> "TensorRef":
        """The reference of a tensor, given its storage's number."""
        size, stride = tuple(tensor.shape), tensor.stride()
        return TensorRef(
            storage, tensor.dtype, size, stride, int(tensor.storage_offset())
        )


@dataclass(frozen=True)
class Op:
    """One recorded operator.

    Args:
        func: the operator.
        args, kwargs: its arguments; deferred tensors as TensorRef, others as copies.
        outputs: references of its tensor outputs, in order.
        reads: storages whose contents matter to it.
        writes: storages it changes.
        overwrites: those of `writes` of which nothing older is left.
        is_fill: it only fills its first argument, so the draws do not depend on data.
        generator: which one it draws from, the default one included.
        rng_state: what Python set that generator to before it: a state, or the index of
            the operator after which it was so (-1: the start); None: left alone.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[TensorRef, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    overwrites: frozenset[int]
    is_fill: bool
    generator: torch.Generator | None = None
    rng_state: Tensor | int | None = None

    @property
    def is_random(self) -> bool:
        """Whether it draws from a generator."""
        return self.generator is not None


@dataclass
class Recording:
    """The recorded construction: operators in order, and the storages they use.

    `end_state` is what Python set the default generator to after the last of them;
    `finals` are the model's tensors, with what they are in the record, by id.
    """

    ops: list[Op] = field(default_factory=list)
    end_state: Tensor | int | None = None
    finals: dict[int, tuple[Tensor, TensorRef]] = field(default_factory=dict)
    storages: list[UntypedStorage] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    def number(self, tensor: Tensor) -> int:
        """The number of a fake tensor's storage; held, so it is never given twice."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key not in self.numbers:
            self.numbers[key] = len(self.storages)
            self.storages.append(storage)
        return self.numbers[key]

    def ref(self, tensor: Tensor) -> TensorRef:
        """The reference of a fake tensor."""
        return TensorRef.of(tensor, self.number(tensor))

    def num_bytes(self, storage: int) -> int:
        """The bytes of a storage."""
        return self.storages[storage].nbytes()


def covers_its_storage(tensor: Tensor) -> bool:
    """Whether each element of the storage is exactly one element of the tensor."""
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        return False
    expected = 1
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(d for d in dims if d[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for item in value for t in tensors_in(item)]
    return []


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nesting with each tensor, or TensorRef, changed."""
    if isinstance(value, Tensor | TensorRef):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, change) for item in value)
    return value
