"""Reading and writing by indices: the indexed dim stays whole.

    index_select(x, 0, j)       S(1), B -> S(1)      B, S(0) -> S(0)      P, B -> P
    gather(x, 1, j)             S(0), S(0) -> S(0)   B, S(1) -> S(1)      P, B -> P
    scatter_add(x, 1, j, y)     S(0), S(0), S(0) -> S(0)
                                P, S(1), S(1) -> P: each rank adds its own
    index(x, [j, k])            as index_select, for several dims at once
    index_put(x, [j], y, accumulate=True)      as scatter_add
    index_put(x, [mask], number)               S(i), S(i) -> S(i)

Where duplicates among the indices overwrite one another, P(sum) does not pass: which
one wins may differ from rank to rank.
"""

from collections.abc import Mapping
from typing import Any

import torch

from placet.placement.layout import Shape
from placet.program.rules.pattern import (
    Letter,
    Pattern,
    broadcast,
    by_pattern,
    normal_dim,
)
from placet.program.signature import Operator, Rule, Slot

aten = torch.ops.aten

TERMS = "terms"
"""The letter of a dim of indices and values that are added up."""


def _shapes(operator: Operator) -> list[Shape]:
    return [meta.shape for meta in operator.inputs]


def _named(operator: Operator) -> int:
    return normal_dim(operator.argument(1, "dim"), len(operator.inputs[0].shape))


def _index_select(operator: Operator) -> Pattern:
    x, index = _shapes(operator)
    dim = _named(operator)
    kept: tuple[Letter, ...] = tuple(None if i == dim else i for i in range(len(x)))
    made: tuple[Letter, ...] = tuple(
        "index" if i == dim and index else letter for i, letter in enumerate(kept)
    )
    return Pattern((kept, ("index",) * len(index)), (made,), linear=((0,),))


def _alike(operator: Operator, shapes: list[Shape]) -> tuple[Letter, ...]:
    """Letters of the dims beside the named one in which all shapes agree."""
    dim = _named(operator)
    return tuple(
        i if i != dim and len({shape[i] for shape in shapes}) == 1 else None
        for i in range(len(shapes[0]))
    )


def _at_dim(dims: tuple[Letter, ...], dim: int, letter: Letter) -> tuple[Letter, ...]:
    return tuple(letter if i == dim else x for i, x in enumerate(dims))


def _gather(operator: Operator) -> Pattern:
    x, index = _shapes(operator)
    if not x or not index:
        return _nothing(operator)
    dims = _alike(operator, [x, index])
    made = _at_dim(dims, _named(operator), "index")
    return Pattern((dims, made), (made,), linear=((0,),))


def _nothing(operator: Operator) -> Pattern:
    """No dim may be split."""
    metas = [meta for meta in operator.outputs if meta is not None]
    outputs = tuple((None,) * len(meta.shape) for meta in metas)
    return Pattern(tuple((None,) * len(s) for s in _shapes(operator)), outputs)


def _scatter(operator: Operator) -> Pattern:
    """scatter(x, dim, index, values or a number); scatter_reduce."""
    dims = _alike(operator, _shapes(operator))
    zero = len(operator.inputs) == 2 and operator.argument(3, "value") == 0
    count = len(operator.inputs)
    return Pattern((dims,) * count, (dims,), linear=((0,),) if zero else ())


def _scatter_add(operator: Operator) -> Pattern:
    x, index, values = _shapes(operator)
    if not x or not index or not values:
        return _nothing(operator)
    dims, dim = _alike(operator, [x, index, values]), _named(operator)
    terms = TERMS if index[dim] == values[dim] else None
    added = _at_dim(dims, dim, terms)
    return Pattern((dims, added, added), (dims,), "sum", linear=((0, 2),), addends=(0,))


def _index_add(operator: Operator) -> Pattern:
    x, index, _ = _shapes(operator)
    if not x:
        return _nothing(operator)
    dim = _named(operator)
    dims: tuple[Letter, ...] = tuple(None if i == dim else i for i in range(len(x)))
    added = _at_dim(dims, dim, TERMS if index else None)
    return Pattern(
        (dims, (TERMS,) * len(index), added),
        (dims,),
        "sum",
        linear=((0, 2),),
        addends=(0,),
    )


def _index_write(operator: Operator) -> Pattern:
    """index_copy(x, dim, index, values) and index_fill(x, dim, index, number)."""
    shapes = _shapes(operator)
    dim = _named(operator)
    dims: tuple[Letter, ...] = tuple(
        None if i == dim else i for i in range(len(shapes[0]))
    )
    inputs = tuple(
        dims if len(shape) == len(dims) and i != 1 else (None,) * len(shape)
        for i, shape in enumerate(shapes)
    )
    zero = len(shapes) == 2 and operator.argument(3, "value") == 0
    return Pattern(inputs, (dims,), linear=((0,),) if zero else ())


def _indexed(operator: Operator) -> list[Slot | None]:
    """For each dim of the input its index; None for dims that are kept."""
    given = list(operator.argument(1, "indices"))
    return given + [None] * (len(operator.inputs[0].shape) - len(given))


def _has_masks(operator: Operator) -> bool:
    slots = [slot for slot in operator.argument(1, "indices") if slot is not None]
    kinds = (torch.bool, torch.uint8)
    return any(operator.inputs[slot.index].dtype in kinds for slot in slots)


def _lookup(
    operator: Operator,
) -> tuple[tuple[Letter, ...], dict[int, tuple[Letter, ...]], tuple[Letter, ...]]:
    """Letters of the input, of the indices by input, and of what indexing gives."""
    indexed = _indexed(operator)
    slots = [slot for slot in indexed if slot is not None]
    found = broadcast([operator.inputs[slot.index].shape for slot in slots])
    rank = max((len(letters) for letters in found), default=0)
    named: dict[int, tuple[Letter, ...]] = {
        slot.index: tuple(None if x is None else ("index", x) for x in letters)
        for slot, letters in zip(slots, found, strict=True)
    }
    kept: tuple[Letter, ...] = tuple(
        i if slot is None else None for i, slot in enumerate(indexed)
    )
    where = [i for i, slot in enumerate(indexed) if slot is not None]
    adjacent = where == list(range(where[0], where[-1] + 1))
    first = where[0] if adjacent else 0
    others = [i for i, slot in enumerate(indexed) if slot is None]
    made: list[Letter] = list(others)
    made[first:first] = [("index", i) for i in range(rank)]
    return kept, named, tuple(made)


def _index(operator: Operator) -> Pattern:
    if _has_masks(operator):
        return _nothing(operator)
    kept, named, made = _lookup(operator)
    inputs = tuple(named.get(i, kept) for i in range(len(operator.inputs)))
    return Pattern(inputs, (made,), linear=((0,),))


def _index_put(operator: Operator) -> Pattern:
    if _has_masks(operator):
        return _masked_put(operator)
    kept, named, made = _lookup(operator)
    accumulates = bool(operator.argument(3, "accumulate", False))
    last = len(operator.inputs) - 1
    values = _aligned(operator, made, named)
    if not accumulates:  # which of two equal indices wins must not be divided
        named = {i: (None,) * len(letters) for i, letters in named.items()}
        values = tuple(x if isinstance(x, int) else None for x in values)
    inputs = tuple(values if i == last else named.get(i, kept) for i in range(last + 1))
    if not accumulates:
        return Pattern(inputs, (kept,))
    return Pattern(inputs, (kept,), "sum", linear=((0, last),), addends=(0,))


def _aligned(
    operator: Operator,
    made: tuple[Letter, ...],
    named: dict[int, tuple[Letter, ...]],
) -> tuple[Letter, ...]:
    """Letters of the values, which broadcast to what indexing would give."""
    x = operator.inputs[0].shape
    sizes: dict[Letter, int] = dict(enumerate(x))
    for i, letters in named.items():
        sizes |= dict(zip(letters, operator.inputs[i].shape, strict=True))
    shape = operator.inputs[-1].shape
    first = len(made) - len(shape)
    return tuple(
        made[first + i] if size == sizes.get(made[first + i], 1) else None
        for i, size in enumerate(shape)
    )


def _masked_put(operator: Operator) -> Pattern:
    """x with one number where a mask over its first dims is true."""
    shapes = _shapes(operator)
    slots = operator.argument(1, "indices")
    if len(shapes) != 3 or slots[0] is None or any(n != 1 for n in shapes[2]):
        return _nothing(operator)
    dims = tuple(range(len(shapes[0])))
    number = (None,) * len(shapes[2])
    return Pattern((dims, dims[: len(shapes[1])], number), (dims,))


def _one_hot(operator: Operator) -> Pattern:
    dims = tuple(range(len(operator.inputs[0].shape)))
    return Pattern((dims,), ((*dims, None),))


RULES: Mapping[Any, Rule] = {
    aten.index_select.default: by_pattern(_index_select),
    aten.gather.default: by_pattern(_gather),
    aten.scatter.src: by_pattern(_scatter),
    aten.scatter.value: by_pattern(_scatter),
    aten.scatter_reduce.two: by_pattern(_scatter),
    aten.scatter_add.default: by_pattern(_scatter_add),
    aten.index_add.default: by_pattern(_index_add),
    aten.index_copy.default: by_pattern(_index_write),
    aten.index_fill.int_Scalar: by_pattern(_index_write),
    aten.index.Tensor: by_pattern(_index),
    aten._unsafe_index.Tensor: by_pattern(_index),
    aten.index_put.default: by_pattern(_index_put),
    aten._unsafe_index_put.default: by_pattern(_index_put),
    aten.one_hot.default: by_pattern(_one_hot),
}
