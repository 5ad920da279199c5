"""Products: a letter per dim; the one that is summed over makes P(sum).

    mm            b k, k n -> b n
    linear        ... k, k n, n -> ... n       the bias is an addend: P where k is split
    contract      ... i, ... j -> i j          every leading dim may be split

A product is linear in each factor; with an addend, in a factor and the addend together.
"""

from collections.abc import Mapping
from string import ascii_lowercase
from typing import Any

import torch

from placet.placement.layout import Layout, Shape
from placet.program.functions.linear import contract, linear
from placet.program.rules.pattern import (
    Letter,
    Pattern,
    by_letters,
    by_pattern,
    parse,
    part_sizes,
    split_sizes,
)
from placet.program.signature import Operator, Rule

aten = torch.ops.aten


def _product(text: str) -> Rule:
    """Two factors."""
    return by_letters(text, reduction="sum", linear=((0,), (1,)))


def _added(text: str) -> Rule:
    """An addend, which may broadcast, then two factors."""
    found = parse(text)

    def pattern(operator: Operator) -> Pattern:
        addend = aligned(operator.inputs[0].shape, found.outputs[0], operator)
        return Pattern(
            (addend, *found.inputs[1:]),
            found.outputs,
            reduction="sum",
            linear=((0, 1), (0, 2)),
            addends=(0,),
        )

    return by_pattern(pattern)


def aligned(
    shape: Shape, letters: tuple[Letter, ...], operator: Operator
) -> tuple[Letter, ...]:
    """The letters of a tensor that broadcasts to an operator's first output."""
    made = operator.outputs[0]
    if made is None:
        return (None,) * len(shape)
    first = len(letters) - len(shape)
    return tuple(
        letters[first + i] if size == made.shape[first + i] else None
        for i, size in enumerate(shape)
    )


def _leading(operator: Operator) -> str:
    """Letters of all dims but the last of the first tensor, away from i to n."""
    letters = ascii_lowercase[:8] + ascii_lowercase[14:]
    return " ".join(letters[: len(operator.inputs[0].shape) - 1])


def _linear(operator: Operator) -> Pattern:
    batch = _leading(operator)
    if len(operator.inputs) == 2:
        text = f"{batch} k, k n -> {batch} n"
        return parse(text, reduction="sum", linear=((0,), (1,)))
    return parse(
        f"{batch} k, k n, n -> {batch} n",
        reduction="sum",
        linear=((0, 2), (1, 2)),
        addends=(2,),
    )


def _contract(operator: Operator) -> Pattern:
    batch = _leading(operator)
    text = f"{batch} i, {batch} j -> i j"
    return parse(text, reduction="sum", linear=((0,), (1,)))


def _grouped(operator: Operator) -> Pattern:
    """_grouped_mm(a, b, offsets): groups of rows, each with its own matrix.

    The ends of the groups are known only when it runs, so neither rows (or columns)
    that are in groups nor the groups can be split.
    """
    ranks = len(operator.inputs[0].shape), len(operator.inputs[1].shape)
    texts = {
        (2, 3): ". k, . k n, . -> . n",
        (3, 2): ". m k, k ., . -> m .",
        (2, 2): "m ., . n, . -> . m n",
        (3, 3): "g m k, g k n -> g m n",
    }
    text = texts[ranks]
    if len(operator.inputs) == 2 and ranks != (3, 3):
        return Pattern(
            tuple((None,) * r for r in ranks), parse(text).outputs, reduction=None
        )
    return parse(text, reduction="sum", linear=((0,), (1,)))


_FALLBACK = "transformers.grouped_mm_fallback"

BY_NAME: Mapping[str, Rule] = {
    f"{_FALLBACK}.default": by_letters(
        ". k, . k n, . -> . n", reduction="sum", linear=((0,), (1,))
    ),
    f"{_FALLBACK}_backward.default": by_letters(
        ". k, . k n, ., . n -> . k, . k n", reduction="sum", linear=((3,),)
    ),
}
"""Rules of operators that exist only once a library is imported that makes them."""


def _grouped_fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    """Its kernels want the rows of all matrices to be multiples of 16 bytes."""
    placed = zip(
        (*operator.inputs, *operator.outputs), (*inputs, *outputs), strict=True
    )
    for meta, layout in placed:
        if meta is None or not meta.dtype.is_floating_point:
            continue
        for dim, size in list(enumerate(meta.shape))[-2:]:
            sizes = part_sizes(size, split_sizes(layout, dim))
            cut = sizes != {size}
            if cut and any(n * meta.dtype.itemsize % 16 for n in sizes):
                return False
    return True


RULES: Mapping[Any, Rule] = {
    linear: by_pattern(_linear),
    contract: by_pattern(_contract),
    aten.mm.default: _product("b k, k n -> b n"),
    aten.bmm.default: _product("g b k, g k n -> g b n"),
    aten.mv.default: _product("b k, k -> b"),
    aten.dot.default: _product("k, k ->"),
    aten.vdot.default: _product("k, k ->"),
    aten.addmm.default: _added("b n, b k, k n -> b n"),
    aten.addmv.default: _added("b, b k, k -> b"),
    aten.addbmm.default: _added("b n, g b k, g k n -> b n"),
    aten.baddbmm.default: _added("g b n, g b k, g k n -> g b n"),
    aten._grouped_mm.default: by_pattern(_grouped, fits=_grouped_fits),
}
