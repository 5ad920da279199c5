"""Remove operators that change nothing in a functional graph.

detach(x), alias(x), clone(x), lift_fresh_copy(x)            -> x
view(x, x's shape), expand(x, x's shape), _to_copy to x's dtype -> x
slice(x, all of it)                                          -> x
t(t(x)), view(view(x))                                       -> x, view(x)
_unsafe_view, reshape                                        -> view

Operators of aten read tensors of any strides, but for a few. Those, and others' own
operators, may ask for a dense copy first: what they read stays.
"""

import torch

from placet.program.graph import Graph, Op, Ref
from placet.program.normalise.rewriting import Rewriting
from placet.torch_private.dispatch import OpOverload

aten = torch.ops.aten

SAME = {
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
}
IF_EQUAL = {
    aten.view.default,
    aten.expand.default,
    aten._to_copy.default,
    aten.slice.Tensor,
}
OF_STRIDES = {
    aten.as_strided.default,
    aten.view.dtype,
    aten.view_as_complex.default,
}
VIEWS = {aten._unsafe_view.default, aten.reshape.default, aten.view.default}


def clean(graph: Graph) -> Graph:
    """The same graph without operators that change nothing."""
    work = Rewriting(graph)
    made: dict[str, Op] = {}
    dense = {name for op in graph.ops if _may_want_dense(op) for name in op.inputs}
    for op in graph.ops:
        op = work.current(op)
        source = op.inputs[0] if op.inputs else None
        target = aten.view.default if op.target in VIEWS else op.target
        out = op.outputs[0]
        if source is None or len(op.outputs) != 1 or out is None:
            work.keep(op)
            continue
        before = made.get(source)
        alike = work.meta(out) == work.meta(source)
        if out in dense:
            work.keep(op)
        elif op.target in SAME or (alike and _is_nothing(op, target)):
            work.same_as(out, source)
        elif target is aten.t.default and before and before.target is aten.t.default:
            work.same_as(out, before.inputs[0])
        elif target is aten.view.default:
            if before is not None and before.target is aten.view.default:
                source = before.inputs[0]
            if work.meta(out) == work.meta(source):
                work.same_as(out, source)
                continue
            shape = work.meta(out).shape
            args = (Ref(source), shape)
            work.emit(op, target, args, name=out, shape=shape)
            made[out] = work.ops[-1]
        else:
            made[out] = work.keep(op)
    return work.done()


def _may_want_dense(op: Op) -> bool:
    """Whether strides matter to an operator: of aten, or by torch.library."""
    is_others = isinstance(op.target, OpOverload) and op.target.namespace != "aten"
    return is_others or op.target in OF_STRIDES


def _is_nothing(op: Op, target: object) -> bool:
    """Whether an op whose output has its input's shape and dtype is the identity."""
    if target is aten.slice.Tensor:
        return len(op.args) < 5 or bool(op.args[4] == 1)
    return target in IF_EQUAL
