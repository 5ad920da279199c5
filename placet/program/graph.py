"""One captured training step as data: operators over named tensors, on one device.

    batch, parameters, buffers -> forward -> loss -> backward -> gradients, new buffers

A graph is functional: nothing is written in place, every tensor has one producer. It
knows nothing of meshes; a plan says how each operator is divided over the ranks, and
`refine` makes a program of both.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch

from placet.placement.layout import Shape

Phase: TypeAlias = Literal["forward", "backward"]


@dataclass(frozen=True)
class TensorMeta:
    """The global shape and dtype of a tensor."""

    shape: Shape
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Ref:
    """A tensor among an operator's arguments."""

    name: str


@dataclass(frozen=True)
class Op:
    """One operator: `outputs = target(*args, **kwargs)`.

    Args:
        name: unique in the graph.
        target: an aten overload, or a function of ours.
        args, kwargs: values; tensors are `Ref`s, also inside of lists.
        outputs: a tensor's name per output; None for one that nobody reads.
        returns_tuple: the target returns a tuple, even if it is of one.
        phase: forward if the loss or a new buffer depends on it.
        module: the submodule that it belongs to ("h.3.attn"); a backward operator to
            that of its forward operator.
        line: where it was called, as "model.py:42, in forward"; "" if not known.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str | None, ...]
    returns_tuple: bool
    phase: Phase
    module: str = ""
    line: str = ""

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Its tensors, in the order of the arguments; one used twice is there twice."""
        return tuple(_refs((self.args, tuple(v for _, v in self.kwargs))))


@dataclass(frozen=True)
class State:
    """A tensor that lives from step to step.

    Args:
        name: as in `model.state_dict()`.
        tensor: its value in the graph.
        new: its gradient (a parameter) or its new value (a buffer); None without.
        is_parameter: or else a buffer.
        is_foreign: neither, but a tensor that the forward finds somewhere else; it is
            whole on every rank and never changed by a step.
    """

    name: str
    tensor: str
    new: str | None
    is_parameter: bool
    is_foreign: bool = False


@dataclass(frozen=True)
class Graph:
    """A captured step.

    Args:
        tensors: shape and dtype of every name.
        ops: in an order in which they may run.
        states: parameters, then buffers, in the model's order; tied ones once.
        inputs: the tensors of the batch, in pytree order.
        loss: 0-d, the mean over the global batch; None in a graph for evaluation that
            has none.
        count: 0-d, the number of targets that the loss is a mean over, if the loss
            function gave it as a tensor.
        extras: further results of a step without backward, in pytree order.
    """

    tensors: Mapping[str, TensorMeta]
    ops: tuple[Op, ...]
    states: tuple[State, ...]
    inputs: tuple[str, ...]
    loss: str | None
    count: str | None = None
    extras: tuple[str, ...] = ()

    @cached_property
    def results(self) -> tuple[str, ...]:
        """What a step is run for: loss, count, extras and the states' new values."""
        found = [self.loss, self.count, *self.extras, *(s.new for s in self.states)]
        return tuple(name for name in found if name is not None)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _refs(item)


def replace_refs(value: Any, change: Callable[[Ref], Any]) -> Any:
    """Arguments with each `Ref` replaced; lists become tuples, so values hash."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, tuple | list):
        return tuple(replace_refs(item, change) for item in value)
    return value
