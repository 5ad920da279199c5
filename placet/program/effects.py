"""What a call takes and makes, found by running it once on tensors without memory.

    effect = (outputs: each a view of something, or memory of its own;
              spare: the most that the call held besides these, while it ran)

A call is run on the meta device, so that views are those of the operators themselves
and temporaries those of our own functions. Calls on tensors of the same form have the
same effect: a deep model's layers are run once. What kernels take for themselves is
added where they are called -> placet.program.workspace.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from placet.placement.layout import Shape
from placet.program.workspace import workspace_bytes
from placet.torch_private.dispatch import storage_key
from placet.torch_private.storages import LiveStorages

META = torch.device("meta")


@dataclass(frozen=True)
class Form:
    """A tensor without its numbers: shape, strides, dtype."""

    shape: Shape
    stride: Shape
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, shape: Shape) -> "Form":
        """The form of a slice of it."""
        return Form(shape, self.stride, self.dtype)


def form_of(tensor: Tensor) -> Form:
    """A tensor's form."""
    return Form(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def dense(shape: Shape, dtype: torch.dtype) -> Form:
    """The form of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return Form(shape, tuple(reversed(strides))[: len(shape)], dtype)


@dataclass(frozen=True)
class Made:
    """An output of a call.

    Args:
        source: whose memory it has: of an input (its index) or of an earlier output
            (their number follows); None for memory of its own.
        num_bytes: of its own memory.
    """

    form: Form
    source: int | None
    num_bytes: int


@dataclass(frozen=True)
class Effect:
    """What a call makes, and what it holds for a while.

    Args:
        made: per output; None for what is no tensor.
        spare_bytes: the most that it held at once beyond its inputs, less `made`.
        full_spare_bytes: the same with what kernels take for themselves.
    """

    made: tuple[Made | None, ...]
    spare_bytes: int
    full_spare_bytes: int


def effect_of(call: Callable[..., object], inputs: Sequence[Form]) -> Effect:
    """Run a call without memory.

    Args:
        call: of the tensors; gives a tensor, or a sequence with tensors in it.
        inputs: the tensors' forms.
    """
    with LiveStorages(workspace_bytes) as watch, torch.no_grad():
        tensors = [
            torch.empty_strided(f.shape, f.stride, dtype=f.dtype, device=META)
            for f in inputs
        ]
        before = watch.live_bytes
        result = call(*tensors)
        peak, full_peak = watch.peak_bytes - before, watch.full_peak_bytes - before
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        known = [storage_key(t.untyped_storage()) for t in tensors]
        made = tuple(_made(item, known) for item in outputs)
    kept = sum(item.num_bytes for item in made if item is not None)
    spare = max(0, peak - kept)
    return Effect(made, spare, max(spare, full_peak - kept))


def _made(item: object, known: list[int]) -> Made | None:
    """An output; its storage joins those that are known."""
    if not isinstance(item, Tensor):
        known.append(-1)
        return None
    key = storage_key(item.untyped_storage())
    source = known.index(key) if key in known else None
    known.append(key)
    own = item.untyped_storage().nbytes() if source is None else 0
    return Made(form_of(item), source, own)
