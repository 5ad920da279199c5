"""Products of flattened tensors as products over all leading dims.

As aten traces a linear layer on x (b, s, k), its dims b and s become one, and no rank
could have a part of the sequence:

    view(x, (b s, k)); mm; view(..., (b, s, n))      -> linear(x, w), (b, s, n)
    mm(t(view(g, (b s, n))), view(x, (b s, k)))      -> contract(g, x), (n, k)
    sum(view(g, (b s, n)), [0])                      -> sum(g, [0, 1])

A tensor (N, ...) that flattens the leading dims of another one is known as `flat`. What
is computed from it row by row is computed from the other, and flattened after that; if
nobody reads the flattened form, it falls away.
"""

import math
from collections.abc import Callable

import torch

from placet.placement.layout import Shape
from placet.program.functions.linear import contract, linear
from placet.program.functions.loss import (
    cross_entropy_gradient,
    exp_sum,
    target_logit,
)
from placet.program.graph import Graph, Op, Ref, replace_refs
from placet.program.normalise.rewriting import Rewriting

aten = torch.ops.aten

OF_ROWS = {exp_sum, target_logit, cross_entropy_gradient}
"""Functions of rows: the leading dims may be any, and the same in all inputs."""


def unflatten(graph: Graph) -> Graph:
    """The same graph with products over all leading dims."""
    walk = _Walk(graph)
    for op in graph.ops:
        walk.visit(walk.work.current(op))
    return walk.work.done()


class _Walk:
    """One walk over the ops.

    `flat` maps (N, rest) tensors to the tensors (lead, rest) that they flatten;
    `turned` maps t(x) to x.
    """

    def __init__(self, graph: Graph) -> None:
        self.work = Rewriting(graph)
        self.flat: dict[str, str] = {}
        self.turned: dict[str, str] = {}

    def visit(self, op: Op) -> None:
        """Emit an op, or what takes its place."""
        handlers: dict[object, Callable[[Op], bool]] = {
            aten.view.default: self._view,
            aten.t.default: self._t,
            aten.mm.default: self._mm,
            aten.addmm.default: self._addmm,
            aten.sum.dim_IntList: self._sum,
            aten.sum.default: self._sum_all,
            aten.amax.default: self._amax,
        }
        handler = handlers.get(op.target)
        if handler is None and _is_row_wise(op):
            handler = self._rows
        if handler is None or not handler(op):
            self.work.keep(op)

    def _lead(self, name: str) -> Shape:
        """The leading dims that a flat tensor flattens."""
        whole, flat = self.work.meta(self.flat[name]).shape, self.work.meta(name).shape
        return whole[: len(whole) - len(flat) + 1]

    def _flattened(self, op: Op, whole: str) -> None:
        """Emit the flat form of a tensor, in case somebody reads it."""
        (out,) = op.outputs
        assert out is not None
        shape = self.work.meta(out).shape
        args = (Ref(whole), shape)
        self.work.emit(op, aten.view.default, args, name=out, shape=shape)
        self.flat[out] = whole

    def _view(self, op: Op) -> bool:
        (source,), (out,) = op.inputs, op.outputs
        assert out is not None
        shape, before = self.work.meta(out).shape, self.work.meta(source).shape
        if source in self.flat:
            whole = self.flat[source]
            if self.work.meta(whole).shape == shape:
                self.work.same_as(out, whole)
                return True
            self.work.emit(
                op, aten.view.default, (Ref(whole), shape), name=out, shape=shape
            )
            return True
        rest = shape[1:]
        count = len(before) - len(rest)
        if count >= 2 and shape and before[count:] == rest:
            self.flat[out] = source
        return False

    def _t(self, op: Op) -> bool:
        (out,) = op.outputs
        assert out is not None
        self.turned[out] = op.inputs[0]
        return False

    def _mm(self, op: Op) -> bool:
        a, b = op.inputs
        (out,) = op.outputs
        assert out is not None
        shape = self.work.meta(out).shape
        if a in self.turned:
            x, y = self.turned[a], b
            if x in self.flat and y in self.flat and self._lead(x) == self._lead(y):
                x, y = self.flat[x], self.flat[y]
            self.work.emit(op, contract, (Ref(x), Ref(y)), name=out, shape=shape)
            return True
        return self._linear(op, a, (Ref(b),))

    def _addmm(self, op: Op) -> bool:
        bias, a, b = op.inputs
        plain = not op.kwargs and len(self.work.meta(bias).shape) == 1
        return plain and self._linear(op, a, (Ref(b), Ref(bias)))

    def _linear(self, op: Op, a: str, others: tuple[Ref, ...]) -> bool:
        (out,) = op.outputs
        assert out is not None
        shape = self.work.meta(out).shape
        if a not in self.flat:
            self.work.emit(op, linear, (Ref(a), *others), name=out, shape=shape)
            return True
        whole = self.flat[a]
        shape = (*self._lead(a), shape[-1])
        made = self.work.emit(
            op, linear, (Ref(whole), *others), name=f"{out}_nd", shape=shape
        )
        self._flattened(op, made)
        return True

    def _sum(self, op: Op) -> bool:
        (source,), (out,) = op.inputs, op.outputs
        if source not in self.flat or op.args[1] != (0,) or op.kwargs:
            return False
        assert out is not None
        whole, made_meta = self.flat[source], self.work.meta(out)
        shape, dtype = made_meta.shape, made_meta.dtype
        lead = self._lead(source)
        rest = self.work.meta(whole).shape[len(lead) :]
        dims = tuple(range(len(lead)))
        over = (Ref(whole), dims, False)
        if shape == rest:
            self.work.emit(op, op.target, over, name=out, shape=rest, dtype=dtype)
            return True
        made = self.work.emit(
            op, op.target, over, name=f"{out}_nd", shape=rest, dtype=dtype
        )
        args = (Ref(made), shape)
        self.work.emit(op, aten.view.default, args, name=out, shape=shape)
        return True

    def _sum_all(self, op: Op) -> bool:
        (source,), (out,) = op.inputs, op.outputs
        if source not in self.flat:
            return False
        assert out is not None
        meta = self.work.meta(out)
        args = (Ref(self.flat[source]),)
        self.work.emit(
            op, op.target, args, name=out, shape=(), dtype=meta.dtype, kwargs=op.kwargs
        )
        return True

    def _amax(self, op: Op) -> bool:
        (source,), (out,) = op.inputs, op.outputs
        if source not in self.flat or op.args[1:] not in (((-1,),), ((1,),)):
            return False
        assert out is not None
        if len(self.work.meta(source).shape) != 2:
            return False
        whole = self.flat[source]
        shape = self.work.meta(whole).shape[:-1]
        args = (Ref(whole), (-1,))
        made = self.work.emit(op, op.target, args, name=f"{out}_nd", shape=shape)
        self._flattened(op, made)
        return True

    def _rows(self, op: Op) -> bool:
        """A function of rows, of flat tensors that all flatten the same dims."""
        (out,) = op.outputs
        shapes = {name: self.work.meta(name).shape for name in op.inputs}
        flat = [name for name in op.inputs if name in self.flat]
        if out is None or not flat:
            return False
        lead = self._lead(flat[0])
        num_rows = math.prod(lead)
        if any(self._lead(name) != lead for name in flat):
            return False
        width = max(len(shapes[name]) for name in flat)
        of_rows = op.target in OF_ROWS
        if not of_rows and any(len(shapes[name]) != width for name in flat):
            return False  # the rows of one are another dim's indices of the other
        for name, shape in shapes.items():
            # Others must say nothing about rows: they broadcast over them.
            broadcasts = not of_rows and (len(shape) < width or shape[0] == 1)
            if name not in self.flat and shape and not broadcasts:
                return False
        meta = self.work.meta(out)
        if not meta.shape or meta.shape[0] != num_rows:
            return False

        def whole(ref: Ref) -> Ref:
            return Ref(self.flat.get(ref.name, ref.name))

        made = self.work.emit(
            op,
            op.target,
            replace_refs(op.args, whole),
            name=f"{out}_nd",
            shape=(*lead, *meta.shape[1:]),
            dtype=meta.dtype,
            kwargs=tuple((n, replace_refs(v, whole)) for n, v in op.kwargs),
        )
        self._flattened(op, made)
        return True


def _is_row_wise(op: Op) -> bool:
    tags = getattr(op.target, "tags", ())
    known = op.target in OF_ROWS or op.target is aten._to_copy.default
    return (known or torch.Tag.pointwise in tags) and not op.returns_tuple
