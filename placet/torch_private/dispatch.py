"""Private names around operator dispatch: modes, fake tensors, schemas, storages."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import init
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

__all__ = [
    "FakeTensorMode",
    "NeedsValues",
    "OpOverload",
    "TorchDispatchMode",
    "argument_names",
    "generator_key",
    "is_fake",
    "mutated",
    "own_attributes",
    "recordable_calls",
    "storage_key",
    "without_modes",
]

NeedsValues = (DataDependentOutputException, DynamicOutputShapeException)
"""What fake tensors raise where values would be needed."""

without_modes = _disable_current_modes


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has no memory."""
    return isinstance(tensor, FakeTensor)


def own_attributes(fake: Tensor) -> dict[str, Any]:
    """The attributes that a user set on a fake tensor."""
    return {k: v for k, v in vars(fake).items() if k not in _common_attributes()}


@lru_cache
def _common_attributes() -> frozenset[str]:
    with without_modes(), FakeTensorMode():
        return frozenset(vars(torch.nn.Parameter(torch.empty(0))))


def _deepcopy_fake(fake: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(fake) not in memo:
        twin = fake.detach().clone()
        if isinstance(fake, torch.nn.Parameter):
            twin = torch.nn.Parameter(twin, requires_grad=fake.requires_grad)
        vars(twin).update(copy.deepcopy(own_attributes(fake), memo))
        memo[id(fake)] = twin
    return cast(Tensor, memo[id(fake)])


def storage_key(storage: UntypedStorage) -> int:
    """What identifies a storage as long as it lives, also one without memory."""
    return int(storage._cdata)


def generator_key(generator: torch.Generator) -> int:
    """What identifies a generator; dispatch wraps it in another Python object."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def argument_names(func: OpOverload) -> set[str]:
    """The names of all arguments of an operator."""
    return {argument.name for argument in func._schema.arguments}


def mutated(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Tensor]:
    """The tensors among the arguments that an operator writes to."""
    found: list[Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        items = value if isinstance(value, list | tuple) else [value]
        found.extend(item for item in items if isinstance(item, Tensor))
    return found


@contextmanager
def recordable_calls(fill: Callable[..., Tensor]) -> Iterator[None]:
    """Replace three functions of torch by forms that fake tensors can follow.

    torch.nn.init.trunc_normal_ draws until all values are within bounds, so it is no
    straight line of operators: `fill(original, tensor, ...)` is called instead. And
    Module.to swaps tensors, which fake ones refuse; setting their data does the same.
    Copying one deeply would copy the mode it belongs to.
    """
    originals = init._no_grad_trunc_normal_, torch.utils.swap_tensors

    def trunc_normal(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return fill(originals[0], tensor, *args, **kwargs)

    def swap(old: Tensor, new: Tensor) -> None:
        if is_fake(old) and is_fake(new):
            old.data = new.data
        else:
            originals[1](old, new)  # type: ignore[no-untyped-call]

    init._no_grad_trunc_normal_, torch.utils.swap_tensors = trunc_normal, swap
    FakeTensor.__deepcopy__ = _deepcopy_fake  # type: ignore[method-assign]
    try:
        yield
    finally:
        init._no_grad_trunc_normal_, torch.utils.swap_tensors = originals
        del FakeTensor.__deepcopy__
