"""Sample calls: pointwise operators, with and without torch's tag."""

from collections.abc import Iterator
from typing import Any

import torch

from placet.program.rules.pointwise import is_pointwise
from testing.rule_samples.forms import Kind, Sample, T, mask, sample

aten = torch.ops.aten

WHOLE_NUMBERS = ("bitwise_", "gcd", "lcm")
"""Operators of whole numbers, by how their names begin."""

LISTED = (
    sample(aten.add.Tensor, T(5, 4), T(4)),
    sample(aten.add.Tensor, T(5, 1), T(3, 1, 4), alpha=2.0),
    sample(aten.add.Tensor, T(5, 4), 1.5),
    sample(aten.add.Tensor, T(), T(5)),
    sample(aten.sub.Tensor, T(5, 4), T(5, 4), alpha=2.0),
    sample(aten.mul.Tensor, T(5, 4), T(4)),
    sample(aten.mul.Tensor, T(5, 4), mask(5, 4)),
    sample(aten.mul.Tensor, T(5, 4), 2.0),
    sample(aten.div.Tensor_mode, T(5, 4), T(5, 4), rounding_mode=None),
    sample(aten.div.Tensor_mode, T(5, 4), T(5, 4), rounding_mode="floor"),
    sample(aten.div.Scalar_mode, T(5, 4), 0.3, rounding_mode="trunc"),
    sample(aten.clamp.default, T(5, 4), -0.5, None),
    sample(aten.clamp.Tensor, T(5, 4), T(4), None),
    sample(aten.clip.default, T(5, 4), None, 0.5),
    sample(aten.clip.Tensor, T(5, 4), None, T(4)),
    sample(aten.round.decimals, T(5, 4), decimals=1),
    sample(aten.where.self, mask(5, 4), T(5, 1), T(4)),
    sample(aten.where.self, mask(5, 1), T(), T(5, 4)),
    sample(aten.masked_fill.Scalar, T(5, 4), mask(4), 0),
    sample(aten.masked_fill.Scalar, T(5, 4), mask(5, 4), -1e9),
    sample(aten.masked_fill.Tensor, T(5, 4), mask(5, 4), T()),
    sample(aten._to_copy.default, T(5, 4), dtype=torch.float32),
    sample(aten._to_copy.default, T(5, 4), dtype=torch.int64),
    sample(aten._to_copy.default, mask(5, 4), dtype=torch.float64),
    sample(aten._to_copy.default, T(5, 4, dtype=torch.int64), dtype=torch.float64),
    sample(aten.clone.default, T(5, 4), memory_format=torch.contiguous_format),
    sample(aten.alias.default, T(5, 4)),
    sample(aten.detach.default, T(5, 4)),
    sample(aten.lift_fresh_copy.default, T(5, 4)),
    sample(aten.contiguous.default, T(5, 4)),
    sample(aten.copy.default, T(5, 4), T(4)),
    sample(aten.fill.Scalar, T(5, 4), 2.0),
    sample(aten.fill.Tensor, T(5, 4), T()),
    sample(aten.hardswish.default, T(5, 4)),
    sample(aten.log_sigmoid.default, T(5, 4)),
    sample(aten._prelu_kernel.default, T(5, 4), T(1, 4)),
    sample(aten.polar.default, T(5, 4), T(5, 4)),
    sample(aten.complex.default, T(5, 4), T(5, 4)),
    sample(aten.isin.Tensor_Scalar, T(5, 4, dtype=torch.int64), 1),
    sample(aten.mish_backward.default, T(5, 4), T(5, 4)),
    sample(aten.softplus_backward.default, T(5, 4), T(5, 4), 1.0, 20.0),
    sample(aten.softshrink_backward.default, T(5, 4), T(5, 4), 0.5),
    sample(aten.hardshrink_backward.default, T(5, 4), T(5, 4), 0.5),
    sample(aten.hardtanh_backward.default, T(5, 4), T(5, 4), -1.0, 1.0),
    sample(aten.hardswish_backward.default, T(5, 4), T(5, 4)),
    sample(aten.hardsigmoid_backward.default, T(5, 4), T(5, 4)),
    sample(aten.leaky_relu_backward.default, T(5, 4), T(5, 4), 0.1, False),
    sample(aten.elu_backward.default, T(5, 4), 1.0, 1.0, 1.0, False, T(5, 4)),
    sample(aten.native_dropout_backward.default, T(5, 4), mask(5, 4), 2.0),
    sample(aten.log_sigmoid_forward.default, T(5, 4)),
    sample(aten.log_sigmoid_backward.default, T(5, 4), T(5, 4), T(5, 4, kind="unit")),
    sample(torch.ops.prims.convert_element_type.default, T(5, 4), torch.float32),
)


def _tagged() -> Iterator[Any]:
    """All aten operators with the tag, which no sample is written for."""
    listed = {one.target for one in LISTED}
    for name in dir(aten):
        packet = getattr(aten, name)
        if name.startswith("__") or not hasattr(packet, "overloads"):
            continue
        for overload in packet.overloads():
            target = getattr(packet, overload)
            if target not in listed and is_pointwise(target):
                yield target


def _sample(target: Any) -> Sample:
    """A call by the operator's schema: tensors that broadcast, and some numbers."""
    shapes = iter([(5, 4), (4,), (5, 1), (5, 4)])
    name = target.name().removeprefix("aten::")
    whole = name.startswith(WHOLE_NUMBERS)
    dtype = torch.int64 if whole else torch.float64
    kind: Kind = "index" if whole else "unit"
    numbers = {"number": 2, "float": 0.5, "int": 1, "bool": False}
    args: list[Any] = []
    for argument in target._schema.arguments:
        if argument.has_default_value() or argument.kwarg_only:
            continue
        if str(argument.type) == "Tensor":
            args.append(T(*next(shapes), dtype=dtype, kind=kind, high=5))
        else:
            args.append(numbers[str(argument.type)])
    return sample(target, *args)


SAMPLES = (*LISTED, *map(_sample, _tagged()))
