"""Batch normalisation in training as steps whose sums may be partial.

y, mean, invstd, running = native_batch_norm(x, weight, bias, running, momentum)
    sums = batch_sums(x);  moments = batch_moments(sums, count)
    y = batch_norm_apply(x, moments, weight, bias)
    running = running + momentum (moments - running), the variance unbiased
dx, dweight, dbias = native_batch_norm_backward(g, x, ...)
    gsums = batch_norm_grad_sums(g, x, moments)
    dx = batch_norm_gradient(g, x, moments, gsums, weight);  dbias, dweight = gsums
"""

import math

import torch

from placet.program.functions.batch_norm import (
    batch_moments,
    batch_norm_apply,
    batch_norm_grad_sums,
    batch_norm_gradient,
    batch_sums,
    moved_average,
    row_of,
)
from placet.program.graph import Graph, Op, Ref
from placet.program.normalise.rewriting import Rewriting

aten = torch.ops.aten
FORWARD = {
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.no_stats,
}
BACKWARD = aten.native_batch_norm_backward.default


def split_batch_norm(graph: Graph) -> Graph:
    """The same graph with each batch normalisation in training in steps."""
    found = {
        op.outputs[0]: op for op in graph.ops if op.target in FORWARD and _trains(op)
    }
    if not found:
        return graph
    by_input = {(op.inputs[0], _weight(op)): op for op in found.values()}
    work = Rewriting(graph)
    for op in graph.ops:
        forward = None
        if op.target is BACKWARD and op.args[7]:
            weight = op.args[2].name if isinstance(op.args[2], Ref) else None
            forward = by_input.get((op.inputs[1], weight))
        if op in found.values():
            _emit_forward(work, work.current(op))
        elif forward is not None:
            _emit_backward(work, work.current(op), forward)
        else:
            work.keep(op)
    return work.done()


def _trains(op: Op) -> bool:
    index = 3 if op.target is aten._native_batch_norm_legit.no_stats else 5
    return bool(op.args[index])


def _weight(op: Op) -> str | None:
    return op.args[1].name if isinstance(op.args[1], Ref) else None


def _emit_forward(work: Rewriting, op: Op) -> None:
    x, weight, bias = op.args[:3]
    has_running = op.target is not aten._native_batch_norm_legit.no_stats
    momentum, eps = op.args[-2], op.args[-1]
    shape, stem = work.meta(x.name).shape, op.name
    count = float(math.prod(shape) // shape[1])
    pair = (2, shape[1])
    sums = work.emit(
        op, batch_sums, (x,), name=f"{stem}_sums", shape=pair, dtype=torch.float64
    )
    name = f"{stem}_moments"
    moments = work.emit(op, batch_moments, (Ref(sums), count), name=name, shape=pair)
    made = op.outputs[0]
    if made is not None:
        args = (x, Ref(moments), weight, bias, eps)
        work.emit(op, batch_norm_apply, args, name=made, shape=shape)
    for row, out in enumerate(op.outputs[3:5] if has_running else ()):
        if out is not None:
            scale = 1.0 if row == 0 else count / max(count - 1, 1.0)
            moved = (op.args[3 + row], Ref(moments), row, momentum * scale, momentum)
            work.emit(op, moved_average, moved, name=out, shape=(shape[1],))


def _emit_backward(work: Rewriting, op: Op, forward: Op) -> None:
    grad, x, weight = op.args[:3]
    eps, moments = op.args[8], Ref(f"{forward.name}_moments")
    shape, stem = work.meta(x.name).shape, op.name
    count = float(math.prod(shape) // shape[1])
    sums = work.emit(
        op,
        batch_norm_grad_sums,
        (grad, x, moments, eps),
        name=f"{stem}_sums",
        shape=(2, shape[1]),
        dtype=torch.float64,
    )
    dx, dweight, dbias = op.outputs
    if dx is not None:
        args = (grad, x, moments, Ref(sums), weight, count, eps)
        work.emit(op, batch_norm_gradient, args, name=dx, shape=shape)
    for row, out in ((1, dweight), (0, dbias)):
        if out is not None:
            dtype = work.meta(out).dtype
            of = (Ref(sums), row, dtype)
            work.emit(op, row_of, of, name=out, shape=(shape[1],), dtype=dtype)
