"""How one operator may be divided over the ranks of a mesh axis.

A signature gives a placement for every tensor of an operator, along one axis:

    mm      S(0), B -> S(0)       B, S(1) -> S(1)       S(1), S(0) -> P(sum)
    relu    S(0) -> S(0)          B -> B                but never P(sum) -> P(sum)

On a mesh of several axes each axis takes a signature of its own. All-B, every rank does
everything, is legal for every operator.

A rule says which signatures an operator has, and what a rank calls then: mostly the
same operator on its parts; sometimes with other sizes (`view`), an offset (`embedding`
split over the vocabulary), or another function (a convolution with a halo).

Source: OneFlow (arXiv:2110.15032), SBP signatures; differs in being per mesh axis, and
in that the local call is part of the rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from placet.placement.layout import Box, Layout, Shape, box_shape, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, Placement
from placet.program.graph import Graph, Op, Ref, TensorMeta, replace_refs


@dataclass(frozen=True)
class Signature:
    """Placements of an operator's tensors along one mesh axis.

    Args:
        inputs: one per tensor input, in the order of `Op.inputs`.
        outputs: one per output, also for those that nobody reads.
    """

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]

    def __repr__(self) -> str:
        given = ", ".join(map(repr, self.inputs))
        return f"{given} -> {', '.join(map(repr, self.outputs))}"

    @property
    def is_replicated(self) -> bool:
        """Whether every rank of the axis does all of the work."""
        return all(isinstance(p, Broadcast) for p in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class Slot:
    """The i-th tensor input of an operator, among its arguments."""

    index: int


@dataclass(frozen=True)
class Operator:
    """An op without names, as rules see it: equal ones are answered once.

    Args:
        target, args, kwargs: as in `Op`, with `Slot(i)` for the i-th tensor input.
        inputs: of every tensor input.
        outputs: of every output; None for what is no tensor.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta | None, ...]

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        if index < len(self.args):
            return self.args[index]
        return dict(self.kwargs).get(name, default)

    @cached_property
    def text(self) -> str:
        """The operator with its shapes, for errors and tables."""
        shapes = ", ".join(str(list(meta.shape)) for meta in self.inputs)
        return f"{target_name(self.target)}({shapes})"


@dataclass(frozen=True)
class Parts:
    """Where an operator's tensors are, as seen by one rank."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    rank: int

    def input_box(self, operator: Operator, index: int) -> Box:
        """The global indices that this rank has of an input."""
        meta = operator.inputs[index]
        return part_box(meta.shape, self.inputs[index], self.rank)

    def output_box(self, operator: Operator, index: int = 0) -> Box:
        """The global indices that this rank makes of an output."""
        meta = operator.outputs[index]
        assert meta is not None
        return part_box(meta.shape, self.outputs[index], self.rank)

    def output_shape(self, operator: Operator, index: int = 0) -> Shape:
        """The shape of this rank's part of an output."""
        return box_shape(self.output_box(operator, index))


@dataclass(frozen=True)
class Call:
    """What a rank calls: `target(*args, **kwargs)`, with `Slot(i)` for its parts.

    Args:
        random_box: for an operator that draws random numbers: which global elements of
            its first output these are.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    random_box: Box | None = None


@dataclass(frozen=True)
class Rule:
    """What is known of an operator.

    Args:
        signatures: the ways to divide it along one axis; all-B need not be among them.
        local: what a rank calls; the same operator on its parts, if left out.
        fits: whether signatures chosen for several axes go together, and with the sizes
            that there are: (operator, input layouts, output layouts). Always asked
            besides: each part of a split dim is that of torch.chunk.
    """

    signatures: Callable[[Operator], Sequence[Signature]]
    local: Callable[[Operator, Parts], Call] | None = None
    fits: Callable[[Operator, tuple[Layout, ...], tuple[Layout, ...]], bool] | None = (
        None
    )


def operator_of(op: Op, graph: Graph) -> Operator:
    """An op without its names."""
    count = iter(range(len(op.inputs)))

    def slot(_: Ref) -> Slot:
        return Slot(next(count))

    args = replace_refs(op.args, slot)
    kwargs = tuple((name, replace_refs(v, slot)) for name, v in op.kwargs)
    return Operator(
        op.target,
        args,
        kwargs,
        tuple(graph.tensors[name] for name in op.inputs),
        tuple(None if n is None else graph.tensors[n] for n in op.outputs),
    )


def layouts_of(
    mesh: Mesh, signatures: tuple[Signature, ...]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """The layouts of an operator's inputs and outputs, by a signature for each axis."""
    inputs = zip(*(s.inputs for s in signatures), strict=True)
    outputs = zip(*(s.outputs for s in signatures), strict=True)
    return (
        tuple(Layout(mesh, placements) for placements in inputs),
        tuple(Layout(mesh, placements) for placements in outputs),
    )


def replicated_signature(operator: Operator) -> Signature:
    """All-B: every rank does everything."""
    b = Broadcast()
    return Signature((b,) * len(operator.inputs), (b,) * len(operator.outputs))


def target_name(target: Callable[..., Any]) -> str:
    """An operator's name for people: aten.mm, placet.linear."""
    name = str(target) if hasattr(target, "overloadpacket") else target.__name__
    return name.removesuffix(".default")
