"""Tensors that a forward uses and that depend on no input.

    positions = arange(8);  if (positions.diff() != 1).any(): ...
    loss = cross_entropy(model(x), y, weight=self.weights_of_classes)

While a step is traced no tensor has values, so a decision by them could not be made.
Those that are made of Python values alone are known, though: every call that makes one
is noted, and computed when its value is asked for. A change in place makes all notes
void.

A tensor that is there already, and is none of the model's or the batch's, is foreign:
a plain attribute, or one that the loss function holds. The step is captured again with
it as an input, so that each step reads what it then holds.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from placet.errors import CaptureError
from placet.torch_private.aot import is_traced, note_line, without_tracing
from placet.torch_private.pytree import leaves, map_leaves

_MADE_OF_NUMBERS = {
    torch.arange,
    torch.eye,
    torch.full,
    torch.linspace,
    torch.ones,
    torch.tensor,
    torch.zeros,
}
_READS = {
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.__int__,
    Tensor.item,
    Tensor.tolist,
}
_NOT_A_FUNCTION = (
    "rand",
    "dropout",
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "rrelu",
    "empty",
)
_NOT_IN_PLACE = ("__index__", "__int__", "__invert__")


_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")


class KnownValues(TorchFunctionMode):
    """Answers for the values of tensors that are made of Python values alone.

    It also notes which line calls what.

    Args:
        own: id of a tensor that was there before tracing -> what it is in the trace.
        left: ids of tensors that must not be read, and what they are; see
            `placet.program.capture_effects`.
    """

    def __init__(
        self, own: Mapping[int, Tensor], left: Mapping[int, tuple[Tensor, str]]
    ) -> None:
        super().__init__()
        self.foreign: dict[int, tuple[Tensor, Tensor]] = {}
        self._own, self._left = own, left
        self._made: dict[int, tuple[Tensor, Callable[[], Any]]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function; note its result, or answer by what was noted."""
        kwargs = kwargs or {}
        line = _line(sys._getframe(1))
        note_line(line)
        if any(not is_traced(t) for t in _tensors(args, kwargs)):
            args, kwargs = map_leaves(lambda x: self._traced(x, line), (args, kwargs))
        if func in _READS and id(args[0]) in self._made:
            with without_tracing():
                return func(self._made[id(args[0])][1](), *args[1:], **kwargs)
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if _is_in_place(name) or "out" in kwargs:
            self._made.clear()
        elif isinstance(result, Tensor) and self._is_known(func, name, args, kwargs):
            self._made[id(result)] = result, self._later(func, args, kwargs)
        return result

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor is made of Python values alone."""
        return id(tensor) in self._made

    def _traced(self, leaf: Any, line: str) -> Any:
        """What a tensor is in the trace; something like it if it is a foreign one."""
        if not isinstance(leaf, Tensor) or is_traced(leaf):
            return leaf
        if id(leaf) in self._left:
            raise CaptureError(
                f"{line}: the forward reads its attribute {self._left[id(leaf)][1]}, "
                "which the step before has set; what goes from step to step must be a "
                "buffer"
            )
        if id(leaf) in self._own:
            return self._own[id(leaf)]
        if id(leaf) not in self.foreign:
            shape, dtype = leaf.shape, leaf.dtype
            like = torch.empty_strided(shape, leaf.stride(), dtype=dtype)
            self.foreign[id(leaf)] = leaf, like
        return self.foreign[id(leaf)][1]

    def _is_known(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:
        read = _tensors(args, kwargs)
        if not read:
            return func in _MADE_OF_NUMBERS
        if any(word in name for word in _NOT_A_FUNCTION):
            return False
        return all(id(t) in self._made for t in read)

    def _later(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        """The call on real tensors of the CPU, made once and only if it is needed."""
        found: list[Any] = []
        sources = {id(leaf): self._made[id(leaf)] for leaf in _tensors(args, kwargs)}

        def real(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return torch.device("cpu")
            return sources[id(leaf)][1]() if isinstance(leaf, Tensor) else leaf

        def value() -> Any:
            if not found:
                given, named = map_leaves(real, (args, kwargs))
                found.append(func(*given, **named))
            return found[0]

        return value


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _is_in_place(name: str) -> bool:
    if name.endswith("__"):
        return name == "__setitem__" or (
            name.startswith("__i") and name not in _NOT_IN_PLACE
        )
    return name.endswith("_")


def _line(frame: FrameType | None) -> str:
    """The innermost line of the user's code: "model.py:42, in forward"."""
    while frame is not None:
        code = frame.f_code
        is_users = not code.co_filename.startswith(_NOT_THE_USERS)
        if is_users and code.co_name != "__torch_function__":
            name = code.co_filename.rpartition("/")[2]
            return f"{name}:{frame.f_lineno}, in {code.co_name}"
        frame = frame.f_back
    return ""
