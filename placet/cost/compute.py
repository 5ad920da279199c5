"""Seconds of an operator on one rank, by the roofline of its machine.

    seconds = max(flops / flops per second, seconds for the bytes) + call

with the rank's share of the flops, 1 / size for each axis whose ranks divide the work
-> divided_share, and of every tensor, 1 / size for each axis that splits it. An
operator whose results are views moves no bytes.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from placet.cost.flops import flops
from placet.cost.machine import Machine, Work
from placet.placement.placement import Split
from placet.program.graph import TensorMeta
from placet.program.signature import Operator, Signature, target_name


def compute_seconds(
    operator: Operator,
    signatures: tuple[Signature, ...],
    sizes: tuple[int, ...],
    machine: Machine,
) -> float:
    """What an operator takes on a rank.

    Args:
        operator: with global shapes.
        signatures: one per mesh axis; () on one rank.
        sizes: of the mesh's axes.
    """
    if is_view(operator.target):
        return machine.call_seconds
    work = flops(operator) * divided_share(signatures, sizes)
    dtype = operator.inputs[0].dtype if operator.inputs else None
    rate = math.inf if dtype is None else machine.rate(_work(operator.target), dtype)
    moved = _moved_bytes(operator, signatures, sizes)
    return max(work / rate, machine.memory_seconds(moved)) + machine.call_seconds


def divided_share(signatures: Sequence[Signature], sizes: Sequence[int]) -> float:
    """The part of an operator's work that one rank does."""
    pairs = zip(signatures, sizes, strict=True)
    return 1.0 / math.prod(size for s, size in pairs if is_divided(s))


def is_divided(signature: Signature) -> bool:
    """Whether the ranks of the axis share the operator's work."""
    placements = (*signature.inputs, *signature.outputs)
    return any(isinstance(p, Split) for p in placements)


@lru_cache(maxsize=4096)
def is_view(target: Callable[..., Any]) -> bool:
    """Whether an operator's results share the memory of its arguments."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.returns:
        return False
    aliases = [result.alias_info for result in schema.returns]
    return all(alias is not None and not alias.is_write for alias in aliases)


@lru_cache(maxsize=4096)
def _work(target: Callable[..., Any]) -> Work:
    name = target_name(target)
    if "convolution" in name:
        return "convolution"
    return "attention" if "attention" in name else "matmul"


def _moved_bytes(
    operator: Operator, signatures: Sequence[Signature], sizes: Sequence[int]
) -> float:
    moved = 0.0
    for i, meta in enumerate(operator.inputs):
        placements = [signature.inputs[i] for signature in signatures]
        moved += _part_bytes(meta, placements, sizes)
    for i, made in enumerate(operator.outputs):
        if made is not None:
            placements = [signature.outputs[i] for signature in signatures]
            moved += _part_bytes(made, placements, sizes)
    return moved


def _part_bytes(
    meta: TensorMeta, placements: Sequence[Any], sizes: Sequence[int]
) -> float:
    pairs = zip(placements, sizes, strict=True)
    return meta.num_bytes / math.prod(n for p, n in pairs if isinstance(p, Split))
