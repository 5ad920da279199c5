"""Views and what only moves elements: a dim of the input goes on as one of the output.

    permute       S(i) -> S(where i goes)
    reshape       dims in groups of equal products, (h, d) <-> (e):  S(h) <-> S(e) if
                  torch.chunk cuts both at the same places  -> groups, same_cuts
    expand        S(i) -> S(i); B -> S(j) of a dim that it makes
    cat, slice    dims that are neither joined nor cut

All of them are linear: P(sum) -> P(sum). Sizes among the arguments become those of this
rank's part; what aten writes as a view of the whole may be none of a part, so each
change of shape runs as a reshape.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from placet.placement.layout import Layout, Shape
from placet.program.rules.pattern import (
    Letter,
    Pattern,
    by_pattern,
    normal_dim,
    normal_dims,
    same_cuts,
    split_sizes,
    with_argument,
    with_sizes,
)
from placet.program.signature import Call, Operator, Parts, Rule

aten = torch.ops.aten

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""Dims of the input and dims of the output that hold the same elements."""


def groups(src: Shape, dst: Shape) -> tuple[Group, ...]:
    """The finest groups of dims of two shapes with equal products; none of size 1."""
    given = [i for i, size in enumerate(src) if size != 1]
    made = [j for j, size in enumerate(dst) if size != 1]
    found = []
    while given or made:
        left, right = [given.pop(0)], [made.pop(0)]
        while (a := math.prod(src[i] for i in left)) != (
            b := math.prod(dst[j] for j in right)
        ):
            if a < b:
                left.append(given.pop(0))
            else:
                right.append(made.pop(0))
        found.append((tuple(left), tuple(right)))
    return tuple(found)


def _reshape_groups(operator: Operator) -> tuple[Group, ...]:
    (given, *_), (made, *_) = operator.inputs, operator.outputs
    if made is None or 0 in given.shape:
        return ()
    return groups(given.shape, made.shape)


def _reshape(operator: Operator) -> Pattern:
    """The first dims of each group are one letter."""
    given: list[Letter] = [None] * len(operator.inputs[0].shape)
    made_meta = operator.outputs[0]
    made: list[Letter] = [None] * (len(made_meta.shape) if made_meta else 0)
    for number, (left, right) in enumerate(_reshape_groups(operator)):
        given[left[0]] = made[right[0]] = number
    return Pattern((tuple(given),), (tuple(made),), linear=((0,),))


def _reshape_fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    made = operator.outputs[0]
    if made is None:
        return True
    given = operator.inputs[0].shape
    for left, right in _reshape_groups(operator):
        cuts = split_sizes(inputs[0], left[0])
        src = given[left[0]], math.prod(given[i] for i in left[1:])
        dst = made.shape[right[0]], math.prod(made.shape[j] for j in right[1:])
        if cuts and not same_cuts(src, dst, cuts):
            return False
    return True


def _reshape_local(operator: Operator, parts: Parts) -> Call:
    return Call(aten.reshape.default, (operator.args[0], parts.output_shape(operator)))


RESHAPE = by_pattern(_reshape, _reshape_local, _reshape_fits)
"""The rule of all changes of shape that keep the order of the elements."""


def _permuting(order: Callable[[Operator, int], tuple[int, ...]]) -> Rule:
    """`order` says which dim of the input each dim of the output is."""

    def pattern(operator: Operator) -> Pattern:
        rank = len(operator.inputs[0].shape)
        made = order(operator, rank)
        return Pattern((tuple(range(rank)),), (made,), linear=((0,),))

    return by_pattern(pattern)


def _permuted(operator: Operator, rank: int) -> tuple[int, ...]:
    return normal_dims(operator.argument(1, "dims"), rank)


def _transposed(operator: Operator, rank: int) -> tuple[int, ...]:
    found = list(range(rank))
    if rank:
        i = normal_dim(operator.argument(1, "dim0"), rank)
        j = normal_dim(operator.argument(2, "dim1"), rank)
        found[i], found[j] = found[j], found[i]
    return tuple(found)


def _reversed(_: Operator, rank: int) -> tuple[int, ...]:
    return tuple(reversed(range(rank)))


def _expand(operator: Operator) -> Pattern:
    given, made = operator.inputs[0].shape, operator.outputs[0]
    assert made is not None
    new = len(made.shape) - len(given)
    letters: tuple[Letter, ...] = tuple(
        new + i if size == made.shape[new + i] else None for i, size in enumerate(given)
    )
    return Pattern((letters,), (tuple(range(len(made.shape))),), linear=((0,),))


def _repeat(operator: Operator) -> Pattern:
    """A dim that is not repeated goes on; one made of a single index may be split."""
    given = operator.inputs[0].shape
    repeats = operator.argument(1, "repeats")
    new = len(repeats) - len(given)
    made: tuple[Letter, ...] = tuple(
        i if i < new or n == 1 or given[i - new] == 1 else None
        for i, n in enumerate(repeats)
    )
    letters: tuple[Letter, ...] = tuple(
        new + i if repeats[new + i] == 1 else None for i in range(len(given))
    )
    return Pattern((letters,), (made,), linear=((0,),))


def _repeat_local(operator: Operator, parts: Parts) -> Call:
    given = operator.inputs[0].shape
    repeats = operator.argument(1, "repeats")
    made = parts.output_shape(operator)
    new = len(repeats) - len(given)
    sizes = tuple(
        made[i] if i < new or given[i - new] == 1 else n for i, n in enumerate(repeats)
    )
    return with_argument(operator, 1, "repeats", sizes)


def _beside(
    index: int,
    name: str,
    default: Any = 0,
    *,
    drops: bool = False,
    adds: bool = False,
    local: Callable[[Operator, Parts], Call] | None = None,
    linear: Callable[[Operator], bool] = lambda _: True,
) -> Rule:
    """All dims but those that an argument names; any number of tensors, alike.

    Args:
        drops, adds: the outputs lack the dim, or it is theirs alone.
        linear: whether P(sum) passes, in all inputs together.
    """

    def pattern(operator: Operator) -> Pattern:
        rank = len(operator.inputs[0].shape)
        named = normal_dims(operator.argument(index, name, default), rank + adds)
        made: tuple[Letter, ...] = tuple(
            None if i in named else i
            for i in range(rank + adds)
            if not (drops and i in named)
        )
        given: tuple[Letter, ...] = tuple(
            None if i in named else i
            for i in range(rank + adds)
            if not (adds and i in named)
        )
        group = (tuple(range(len(operator.inputs))),) if linear(operator) else ()
        outputs = (made,) * len(operator.outputs)
        return Pattern((given,) * len(operator.inputs), outputs, linear=group)

    return by_pattern(pattern, local)


def _cat(operator: Operator) -> Pattern:
    """Tensors of [0] beside others of more dims are skipped by aten.cat: kept whole."""
    ranks = {len(meta.shape) for meta in operator.inputs}
    made = operator.outputs[0]
    rank = len(made.shape) if made is not None else max(ranks)
    dim = normal_dim(operator.argument(1, "dim", 0), rank)
    letters: tuple[Letter, ...] = tuple(None if i == dim else i for i in range(rank))
    if len(ranks) > 1:
        letters = (None,) * rank
    inputs = tuple(
        letters if len(meta.shape) == rank else (None,) * len(meta.shape)
        for meta in operator.inputs
    )
    return Pattern(inputs, (letters,), linear=(tuple(range(len(inputs))),))


def _slice(operator: Operator) -> Pattern:
    """A slice of the whole dim keeps it."""
    given, made = operator.inputs[0].shape, operator.outputs[0]
    dim = normal_dim(operator.argument(1, "dim", 0), len(given))
    whole = made is not None and made.shape == given
    letters: tuple[Letter, ...] = tuple(
        i if whole or i != dim else None for i in range(len(given))
    )
    return Pattern((letters,), (letters,), linear=((0,),))


def _slice_local(operator: Operator, parts: Parts) -> Call:
    made = operator.outputs[0]
    if made is not None and made.shape == operator.inputs[0].shape:
        return Call(aten.alias.default, operator.args[:1])
    return Call(operator.target, operator.args, operator.kwargs)


def _pad(operator: Operator) -> Pattern:
    rank = len(operator.inputs[0].shape)
    pad = operator.argument(1, "pad")
    letters: tuple[Letter, ...] = tuple(
        None if any(pad[2 * (rank - 1 - i) : 2 * (rank - i)]) else i
        for i in range(rank)
    )
    linear = ((0,),) if operator.argument(2, "value", 0) == 0 else ()
    return Pattern((letters,), (letters,), linear=linear)


def _unfold(operator: Operator) -> Pattern:
    """The windows of a dim; their elements are a last dim."""
    rank = len(operator.inputs[0].shape)
    dim = normal_dim(operator.argument(1, "dimension"), rank)
    letters: tuple[Letter, ...] = tuple(None if i == dim else i for i in range(rank))
    return Pattern((letters,), ((*letters, None),), linear=((0,),))


def _diagonal(operator: Operator) -> Pattern:
    """The diagonal of two dims is a last dim."""
    rank = len(operator.inputs[0].shape)
    named = {
        normal_dim(operator.argument(2, "dim1", 0), rank),
        normal_dim(operator.argument(3, "dim2", 1), rank),
    }
    letters: tuple[Letter, ...] = tuple(None if i in named else i for i in range(rank))
    made = (*(i for i in range(rank) if i not in named), None)
    return Pattern((letters,), (made,), linear=((0,),))


def _as_complex(operator: Operator) -> Pattern:
    dims = tuple(range(len(operator.inputs[0].shape) - 1))
    return Pattern(((*dims, None),), (dims,), linear=((0,),))


def _as_real(operator: Operator) -> Pattern:
    dims = tuple(range(len(operator.inputs[0].shape)))
    return Pattern((dims,), ((*dims, None),), linear=((0,),))


def _into(index: int, name: str, *, drops: bool) -> Rule:
    """A gradient or value put into a tensor of the given sizes, beside a dim."""

    def pattern(operator: Operator) -> Pattern:
        rank = len(operator.argument(1, "input_sizes"))
        dim = normal_dim(operator.argument(index, name), rank)
        made: tuple[Letter, ...] = tuple(None if i == dim else i for i in range(rank))
        given = tuple(x for i, x in enumerate(made) if not (drops and i == dim))
        return Pattern((given,), (made,), linear=((0,),))

    return by_pattern(pattern, with_sizes(1, "input_sizes"))


def _unfold_backward(operator: Operator) -> Pattern:
    rank = len(operator.argument(1, "input_sizes"))
    dim = normal_dim(operator.argument(2, "dim"), rank)
    made: tuple[Letter, ...] = tuple(None if i == dim else i for i in range(rank))
    return Pattern(((*made, None),), (made,), linear=((0,),))


def _scattered(*, drops: bool) -> Rule:
    """slice_scatter(x, src, dim, ...) and select_scatter(x, src, dim, index)."""

    def pattern(operator: Operator) -> Pattern:
        rank = len(operator.inputs[0].shape)
        dim = normal_dim(operator.argument(2, "dim", 0), rank)
        x: tuple[Letter, ...] = tuple(None if i == dim else i for i in range(rank))
        src = tuple(letter for i, letter in enumerate(x) if not (drops and i == dim))
        return Pattern((x, src), (x,), linear=((0, 1),))

    return by_pattern(pattern)


def _masks_matrix(operator: Operator) -> Pattern:
    """tril and triu: all dims but the last two."""
    rank = len(operator.inputs[0].shape)
    letters: tuple[Letter, ...] = (*range(rank - 2), None, None)
    return Pattern((letters,), (letters,), linear=((0,),))


def _interleave(operator: Operator) -> Pattern:
    """repeat_interleave(x, n, dim): all dims, the repeated one if the cuts match."""
    rank = len(operator.inputs[0].shape)
    dim = operator.argument(2, "dim")
    if dim is None:
        return Pattern(((None,) * rank,), ((None,),), linear=((0,),))
    letters: tuple[Letter, ...] = tuple(range(rank))
    return Pattern((letters,), (letters,), linear=((0,),))


def _interleave_fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    dim = operator.argument(2, "dim")
    if dim is None:
        return True
    shape, times = operator.inputs[0].shape, operator.argument(1, "repeats")
    dim = normal_dim(dim, len(shape))
    src, dst = (shape[dim], times), (shape[dim] * times, 1)
    return same_cuts(src, dst, split_sizes(inputs[0], dim))


def _interleave_local(operator: Operator, parts: Parts) -> Call:
    kwargs = {k: v for k, v in operator.kwargs if k != "output_size"}
    return Call(operator.target, operator.args[:3], tuple(kwargs.items()))


_RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.view_copy.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_copy.dim,
    aten.unsqueeze.default,
    aten.unsqueeze_copy.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
)

RULES: Mapping[Any, Rule] = dict.fromkeys(_RESHAPES, RESHAPE) | {
    aten.permute.default: _permuting(_permuted),
    aten.permute_copy.default: _permuting(_permuted),
    aten.transpose.int: _permuting(_transposed),
    aten.t.default: _permuting(_reversed),
    aten.expand.default: by_pattern(_expand, with_sizes(1, "size")),
    aten.expand_copy.default: by_pattern(_expand, with_sizes(1, "size")),
    aten.repeat.default: by_pattern(_repeat, _repeat_local),
    aten.repeat_interleave.self_int: by_pattern(
        _interleave, _interleave_local, _interleave_fits
    ),
    aten.select.int: _beside(1, "dim", drops=True),
    aten.unbind.int: _beside(1, "dim", drops=True),
    aten.split.Tensor: _beside(2, "dim"),
    aten.split_with_sizes.default: _beside(2, "dim"),
    aten.unsafe_split.Tensor: _beside(2, "dim"),
    aten.unsafe_chunk.default: _beside(2, "dim"),
    aten.chunk.default: _beside(2, "dim"),
    aten.narrow.default: _beside(1, "dim"),
    aten.slice.Tensor: by_pattern(_slice, _slice_local),
    aten.cat.default: by_pattern(_cat),
    aten.stack.default: _beside(1, "dim", adds=True),
    aten.flip.default: _beside(1, "dims"),
    aten.roll.default: _beside(2, "dims", None),
    aten.constant_pad_nd.default: by_pattern(_pad),
    aten.unfold.default: by_pattern(_unfold),
    aten.unfold_backward.default: by_pattern(
        _unfold_backward, with_sizes(1, "input_sizes")
    ),
    aten.slice_backward.default: _into(2, "dim", drops=False),
    aten.select_backward.default: _into(2, "dim", drops=True),
    aten.slice_scatter.default: _scattered(drops=False),
    aten.select_scatter.default: _scattered(drops=True),
    aten.diagonal.default: by_pattern(_diagonal),
    aten.view_as_complex.default: by_pattern(_as_complex),
    aten.view_as_real.default: by_pattern(_as_real),
    aten.tril.default: by_pattern(_masks_matrix),
    aten.triu.default: by_pattern(_masks_matrix),
}
