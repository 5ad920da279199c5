"""Rules written with letters: one letter per dim that may be split.

    mm          "b k, k n -> b n"         a letter on both sides may be split
    amax        "b k -> b"                a letter that is reduced makes P(max)
    addmm       "n, b k, k n -> b n"      the first is an addend: P where k is split

A letter that stands in a tensor is S(its dim) there and B elsewhere; one that no output
has makes the outputs P. `linear` lists sets of inputs that are P(sum) at once, the
others being B, where the operator is linear in them jointly:

    mm          {a}, {b}                  add: {a, b}                where: {x, y}

    letters -> signatures                                       -> Pattern.signatures
    chunks of a dim of n x inner and of m x others that match   -> same_cuts

Source: einsum-like partition rules, as in nnScaler (OSDI 2024); differs in letters that
come from the shapes, so that broadcasting and views need no strings.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from placet.placement.layout import Layout, Shape
from placet.placement.placement import B, Placement, Reduction, S
from placet.placement.placement import P as partial
from placet.program.graph import TensorMeta
from placet.program.signature import Call, Operator, Parts, Rule, Signature

Letter: TypeAlias = Hashable
"""Names a dim; None for one that must stay whole."""

Source: TypeAlias = Literal["own", "dtensor", "decomposition", "replicated"]
"""Where a rule comes from: this folder, DTensor's rules, the operator's decomposition;
"replicated" is for operators without any, which every rank runs whole."""

Local: TypeAlias = Callable[[Operator, Parts], Call]
Fits: TypeAlias = Callable[[Operator, tuple[Layout, ...], tuple[Layout, ...]], bool]


@dataclass(frozen=True)
class Pattern:
    """The dims of an operator's tensors, by letters.

    Args:
        inputs, outputs: per tensor a letter for each dim; for an output that nobody
            reads too.
        reduction: of the outputs where a letter of the inputs is split that they lack;
            None if such a letter may not be split.
        linear: sets of inputs that may be P(sum) together; the outputs then are, too.
        addends: inputs that are P(sum) where a reduced letter is split.
        extra: signatures besides.
    """

    inputs: tuple[tuple[Letter, ...], ...]
    outputs: tuple[tuple[Letter, ...], ...]
    reduction: Reduction | None = None
    linear: tuple[Collection[int], ...] = ()
    addends: Collection[int] = ()
    extra: tuple[Signature, ...] = ()

    def signatures(self, operator: Operator) -> tuple[Signature, ...]:
        """The ways to divide the operator along one axis, without all-B."""
        letters = dict.fromkeys(
            x for dims in (*self.inputs, *self.outputs) for x in dims if x is not None
        )
        short = self._short(operator)
        found = [self._split(x) for x in letters if x not in short]
        kept = [s for s in found if s is not None]
        if has_sums(operator.outputs):
            kept += [
                self._partial(group)
                for group in self.linear
                if has_sums([operator.inputs[i] for i in group])
            ]
        return (*kept, *self.extra)

    def _short(self, operator: Operator) -> set[Letter]:
        """Letters of dims with fewer than two indices."""
        metas = zip(
            (*self.inputs, *self.outputs),
            (*operator.inputs, *operator.outputs),
            strict=True,
        )
        return {
            letter
            for dims, meta in metas
            if meta is not None
            for letter, size in zip(dims, meta.shape, strict=True)
            if size < 2
        }

    def _split(self, letter: Letter) -> Signature | None:
        made = [letter in dims for dims in self.outputs]
        if self.reduction is None and not all(made):
            return None
        summed = not any(made)
        reduced = partial(self.reduction or "sum")
        return Signature(
            tuple(
                partial() if summed and i in self.addends else _at(dims, letter, B)
                for i, dims in enumerate(self.inputs)
            ),
            tuple(_at(dims, letter, reduced) for dims in self.outputs),
        )

    def _partial(self, group: Collection[int]) -> Signature:
        inputs = tuple(partial() if i in group else B for i in range(len(self.inputs)))
        return Signature(inputs, (partial(),) * len(self.outputs))


def _at(dims: Sequence[Letter], letter: Letter, without: Placement) -> Placement:
    return S(dims.index(letter)) if letter in dims else without


def has_sums(metas: Sequence[TensorMeta | None]) -> bool:
    """Whether sums of terms have a meaning for all: not for truth values."""
    return all(meta is None or meta.dtype != torch.bool for meta in metas)


def parse(text: str, **options: Any) -> Pattern:
    """A pattern from text, as "b k, k n -> b n"; a dot stands for a dim kept whole."""
    left, right = text.split("->")
    inputs, outputs = _letters(left), _letters(right)
    return Pattern(inputs, outputs, **options)


def _letters(text: str) -> tuple[tuple[Letter, ...], ...]:
    tensors = text.split(",")
    return tuple(tuple(None if x == "." else x for x in t.split()) for t in tensors)


def by_pattern(
    pattern: Callable[[Operator], Pattern],
    local: Local | None = None,
    fits: Fits | None = None,
) -> Rule:
    """A rule whose signatures are those of a pattern."""
    return Rule(lambda operator: pattern(operator).signatures(operator), local, fits)


def by_letters(text: str, **options: Any) -> Rule:
    """A rule from text; see `parse` and `Pattern`."""
    found = parse(text, **options)
    return by_pattern(lambda _: found)


def whole(_: Operator) -> Sequence[Signature]:
    """No way but all-B."""
    return ()


WHOLE = Rule(whole)
"""The rule of operators that cannot be divided."""


def dims_of(index: int, shape: Shape) -> tuple[Letter, ...]:
    """Letters for the dims of the index-th tensor, its own and no other's."""
    return tuple((index, dim) for dim in range(len(shape)))


def broadcast(shapes: Sequence[Shape]) -> tuple[tuple[Letter, ...], ...]:
    """Letters for tensors that broadcast: a dim of size 1 beside a larger is whole."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    sizes = [max(column, default=1) for column in zip(*padded, strict=True)]
    return tuple(
        tuple(
            dim if size == sizes[dim] else None
            for dim, size in enumerate(shape, rank - len(shape))
        )
        for shape in shapes
    )


def with_argument(operator: Operator, index: int, name: str, value: Any) -> Call:
    """The same operator with another value for one argument, by position or name."""
    if index < len(operator.args):
        args = (*operator.args[:index], value, *operator.args[index + 1 :])
        return Call(operator.target, args, operator.kwargs)
    kwargs = dict(operator.kwargs) | {name: value}
    return Call(operator.target, operator.args, tuple(kwargs.items()))


def with_sizes(index: int, name: str) -> Local:
    """The local call with one argument, the output's sizes, as this rank's part's."""

    def local(operator: Operator, parts: Parts) -> Call:
        return with_argument(operator, index, name, parts.output_shape(operator))

    return local


def same_call(operator: Operator) -> Call:
    """The same operator on the parts."""
    return Call(operator.target, operator.args, operator.kwargs)


def normal_dim(dim: int, rank: int) -> int:
    """A dim counted from the front."""
    return dim % rank if rank else 0


def normal_dims(dims: Any, rank: int) -> tuple[int, ...]:
    """Dims counted from the front; all of them for None or ()."""
    if dims is None or dims == ():
        return tuple(range(rank))
    given = dims if isinstance(dims, tuple | list) else (dims,)
    return tuple(normal_dim(dim, rank) for dim in given)


def split_sizes(layout: Layout, dim: int) -> tuple[int, ...]:
    """The sizes of the axes that cut a dim, outermost cut first."""
    return tuple(layout.mesh.size(axis) for axis in layout.split_axes(dim))


def num_cuts(layout: Layout, dim: int) -> int:
    """In how many parts a dim is cut."""
    count = 1
    for size in split_sizes(layout, dim):
        count *= size
    return count


def part_sizes(size: int, cuts: Sequence[int]) -> set[int]:
    """The sizes of the parts that torch.chunk makes of a dim, outermost cut first."""
    found = {size}
    for num_parts in cuts:
        inside = set()
        for n in found:
            step = -(-n // num_parts)
            inside |= {max(0, min(step, n - i * step)) for i in range(num_parts)}
        found = inside
    return found


def same_cuts(src: tuple[int, int], dst: tuple[int, int], cuts: Sequence[int]) -> bool:
    """Whether torch.chunk cuts two views of the same elements at the same places.

    Args:
        src, dst: (size, elements per index) of the dim that is cut; equal products.
        cuts: numbers of parts, outermost cut first.
    """
    (a, a_inner), (b, b_inner) = src, dst
    assert a * a_inner == b * b_inner, (src, dst)
    pairs = {(a, b)}
    for num_parts in cuts:
        inside = set()
        for m, n in pairs:
            i, j = -(-m // num_parts), -(-n // num_parts)
            if i * a_inner != j * b_inner:
                return False
            inside |= {(i, j)}
            if i and m % i:
                inside |= {(m % i, n % j)}
        pairs = inside
    return True


def and_linear(pattern: Pattern, *groups: Collection[int]) -> Pattern:
    """The pattern with more sets of inputs that may be P(sum) together."""
    return replace(pattern, linear=(*pattern.linear, *groups))
