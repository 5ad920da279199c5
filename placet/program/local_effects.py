"""What a rank's calls and boxings do to its memory; equal ones are asked once.

operator, signatures, rank    -> the rank's call, and its effect        -> call_effect
boxing, rank                  -> its payload, and room for its arrival  -> departure
                                 its results                            -> arrival
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from placet.boxing.lowered import Lowered
from placet.boxing.moves import AllReduce
from placet.boxing.packing import pack, unpack
from placet.boxing.plan import plan_direct
from placet.boxing.scratch import scratch_bytes
from placet.placement.cluster import Cluster
from placet.placement.layout import Layout, Shape
from placet.placement.mesh import Mesh
from placet.program.effects import META, Effect, Form, dense, effect_of
from placet.program.rules.table import localize
from placet.program.signature import (
    Call,
    Operator,
    Parts,
    Signature,
    Slot,
    layouts_of,
)
from placet.torch_private.dispatch import OpOverload, argument_names

CACHED = 1 << 14
"""Answers that are kept: far more than a model has different operators."""


@dataclass(frozen=True)
class Change:
    """A boxing without its name."""

    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    src: Layout
    dst: Layout


@dataclass(frozen=True)
class Departure:
    """How a boxing begins.

    Args:
        payload: what packing does; None where nothing moves.
        arrival: what the move brings; None if it may be written over the payload.
        holds: the inputs are needed until it ends.
    """

    payload: Effect | None
    arrival: Form | None
    holds: bool


def call_effect(
    operator: Operator,
    mesh: Mesh,
    picked: tuple[Signature, ...],
    rank: int,
    inputs: tuple[Form, ...],
) -> tuple[Effect, bool]:
    """What a rank's call of an operator does, and whether it draws random numbers.

    Args:
        picked: a signature for each axis of the mesh.
        inputs: the rank's parts.
    """
    call = _local(operator, mesh, picked, rank)
    return _effect_of_call(call, inputs), call.random_box is not None


@lru_cache(maxsize=CACHED)
def _local(
    operator: Operator, mesh: Mesh, picked: tuple[Signature, ...], rank: int
) -> Call:
    return localize(operator, Parts(*layouts_of(mesh, picked), rank))


@lru_cache(maxsize=CACHED)
def _effect_of_call(call: Call, inputs: tuple[Form, ...]) -> Effect:
    def run(*tensors: Tensor) -> object:
        return call.target(*_filled(call.args, tensors), **_options(call, tensors))

    return effect_of(run, inputs)


@lru_cache(maxsize=CACHED)
def departure(
    change: Change, rank: int, inputs: tuple[Form, ...], *, may_overwrite: bool
) -> Departure:
    """How a boxing begins on a rank.

    Args:
        inputs: the rank's parts.
        may_overwrite: nobody else reads them.
    """
    lowered = _lowered(change, rank)
    holds = any(lowered.recipe.keeps)
    if lowered.move is None:
        return Departure(None, None, holds=True)
    payload = effect_of(lambda *tensors: pack(lowered, tensors, META)[0], inputs)
    (made,) = payload.made
    assert made is not None
    is_copy = made.source is None
    if isinstance(lowered.move, AllReduce) and (is_copy or may_overwrite):
        return Departure(payload, None, holds)
    room = dense((sum(lowered.recipe.arrival_sizes),), lowered.dtype)
    return Departure(payload, room, holds)


@lru_cache(maxsize=CACHED)
def arrival(
    change: Change, rank: int, inputs: tuple[Form, ...], *, has_arrived: bool
) -> Effect:
    """How a boxing ends on a rank.

    Args:
        inputs: what is held of the rank's parts, and then what has arrived.
        has_arrived: something has.
    """
    lowered = _lowered(change, rank)

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        if not has_arrived:
            return unpack(lowered, tensors, None, META)
        return unpack(lowered, tensors[:-1], tensors[-1].view(-1), META)

    return effect_of(call, inputs)


def wire_bytes(change: Change, rank: int, cluster: Cluster | None) -> int:
    """What a rank's wire takes for itself while a boxing travels.

    Args:
        cluster: the links by which moves choose their algorithm.
    """
    move = _lowered(change, rank, cluster).move
    return 0 if move is None else scratch_bytes(move, rank)


def _lowered(change: Change, rank: int, cluster: Cluster | None = None) -> Lowered:
    """What a rank does; by which algorithm its move runs matters to the wire only."""
    plan = plan_direct(
        change.shapes, change.dtype, change.src, change.dst, cluster=cluster
    )
    (lowered,) = plan.lowered(rank)
    return lowered


def _filled(value: Any, inputs: Sequence[Tensor]) -> Any:
    if isinstance(value, Slot):
        return inputs[value.index]
    if isinstance(value, torch.device):
        return META
    if isinstance(value, tuple):
        return tuple(_filled(item, inputs) for item in value)
    return value


def _options(call: Call, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """A call's keywords; what makes tensors from nothing makes them without memory."""
    found = {name: _filled(value, inputs) for name, value in call.kwargs}
    if not inputs and _takes_device(call.target):
        found["device"] = META
    return found


def _takes_device(target: Callable[..., Any]) -> bool:
    return isinstance(target, OpOverload) and "device" in argument_names(target)
