"""Cross-entropy as steps whose sums over the vocabulary may be partial.

    lsm = _log_softmax(x, -1); loss, weight = nll_loss_forward(lsm, target)
        m = amax(x, -1);  z = exp_sum(x, m);  hit = target_logit(x, target)
        row = masked_fill(log(z) + m - hit, target == ignore_index, 0)
        loss = sum(row) / sum(target != ignore_index)     (or the sum, or the rows)
    nll_loss_backward(g, lsm, target), _log_softmax_backward_data
        cross_entropy_gradient(x, target, m, z, g / count)

Losses with class weights, and those whose rows are wanted one by one, stay as they are.
"""

from dataclasses import dataclass

import torch

from placet.program.functions.loss import (
    cross_entropy_gradient,
    exp_sum,
    target_logit,
)
from placet.program.graph import Graph, Op, Ref
from placet.program.normalise.rewriting import Rewriting

aten = torch.ops.aten
MEAN, SUM = 1, 2


@dataclass(frozen=True)
class Loss:
    """One cross-entropy: its ops, by what they do."""

    softmax: Op
    forward: Op
    nll_backward: Op | None
    softmax_backward: Op | None

    @property
    def names(self) -> set[str]:
        """Names of the ops that are replaced."""
        ops = (self.softmax, self.forward, self.nll_backward, self.softmax_backward)
        return {op.name for op in ops if op is not None}


def split_cross_entropy(graph: Graph) -> Graph:
    """The same graph with each plain cross-entropy in steps."""
    losses = _find(graph)
    by_op = {name: loss for loss in losses for name in loss.names}
    if not losses:
        return graph
    work = Rewriting(graph)
    for op in graph.ops:
        loss = by_op.get(op.name)
        if loss is None:
            work.keep(op)
        elif op is loss.forward:
            _emit_forward(work, loss)
        elif op is loss.softmax_backward:
            _emit_backward(work, loss)
    return work.done()


def _find(graph: Graph) -> list[Loss]:
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    found = []
    for op in graph.ops:
        if op.target is not aten._log_softmax.default:
            continue
        (out,) = op.outputs
        if out is None or len(graph.tensors[out].shape) != 2:
            continue
        if op.args[1] not in (1, -1) or op.args[2]:
            continue  # other dims; or the result is wider than the scores
        loss = _match(op, readers.get(out, []), readers, graph)
        if loss is not None:
            found.append(loss)
    return found


def _match(
    softmax: Op, users: list[Op], readers: dict[str, list[Op]], graph: Graph
) -> Loss | None:
    by_target = {op.target: op for op in users}
    if len(by_target) < len(users):  # two losses of the same scores
        return None
    forward = by_target.pop(aten.nll_loss_forward.default, None)
    nll_backward = by_target.pop(aten.nll_loss_backward.default, None)
    softmax_backward = by_target.pop(aten._log_softmax_backward_data.default, None)
    if forward is None or by_target:
        return None
    if forward.args[2] is not None or forward.args[3] not in (MEAN, SUM):
        return None
    loss = Loss(softmax, forward, nll_backward, softmax_backward)
    if (nll_backward is None) != (softmax_backward is None):
        return None
    weight = forward.outputs[1]
    used = readers.get(weight, []) if weight is not None else []
    if any(op is not nll_backward for op in used):
        return None
    if nll_backward is not None:
        (made,) = nll_backward.outputs
        assert made is not None
        if any(op is not softmax_backward for op in readers.get(made, [])):
            return None
    (out,) = softmax.outputs
    return None if out in graph.results else loss


def _emit_forward(work: Rewriting, loss: Loss) -> None:
    op = loss.forward
    stem, made = op.name, op.outputs[0]
    logits, target, ignore = _parts(work, loss)
    x, y = Ref(logits), Ref(target)
    rows, dtype = work.meta(target).shape, work.meta(logits).dtype
    work.emit(op, aten.amax.default, (x, (-1,)), name=f"{stem}_max", shape=rows)
    peak = Ref(f"{stem}_max")
    work.emit(op, exp_sum, (x, peak), name=f"{stem}_sum", shape=rows)
    work.emit(op, target_logit, (x, y, ignore), name=f"{stem}_hit", shape=rows)
    log = work.emit(
        op, aten.log.default, (Ref(f"{stem}_sum"),), name=f"{stem}_log", shape=rows
    )
    add = work.emit(
        op, aten.add.Tensor, (Ref(log), peak), name=f"{stem}_lse", shape=rows
    )
    difference = (Ref(add), Ref(f"{stem}_hit"))
    row = work.emit(op, aten.sub.Tensor, difference, name=f"{stem}_all", shape=rows)
    skip, counts = f"{stem}_skip", f"{stem}_counts"
    for name, test in ((skip, aten.eq.Scalar), (counts, aten.ne.Scalar)):
        work.emit(op, test, (y, ignore), name=name, shape=rows, dtype=torch.bool)
    fill = (Ref(row), Ref(skip), 0)
    row = work.emit(op, aten.masked_fill.Scalar, fill, name=f"{stem}_rows", shape=rows)
    total = work.emit(op, aten.sum.default, (Ref(row),), name=f"{stem}_total", shape=())
    count = work.emit(
        op,
        aten.sum.default,
        (Ref(counts),),
        name=f"{stem}_n",
        shape=(),
        dtype=torch.int64,
    )
    work.emit(
        op,
        aten._to_copy.default,
        (Ref(count),),
        name=f"{stem}_count",
        shape=(),
        dtype=dtype,
        kwargs=(("dtype", dtype),),
    )
    if made is None:
        return
    if op.args[3] == SUM:
        work.same_as(made, total)
        return
    mean = (Ref(total), Ref(f"{stem}_count"))
    work.emit(op, aten.div.Tensor, mean, name=made, shape=(), dtype=dtype)


def _emit_backward(work: Rewriting, loss: Loss) -> None:
    assert loss.nll_backward is not None
    assert loss.softmax_backward is not None
    op, stem = loss.softmax_backward, loss.forward.name
    logits, target, ignore = _parts(work, loss)
    scale = work.now(loss.nll_backward.inputs[0])
    if loss.forward.args[3] == MEAN:
        share = (Ref(scale), Ref(f"{stem}_count"))
        scale = work.emit(op, aten.div.Tensor, share, name=f"{op.name}_scale", shape=())
    (made,) = op.outputs
    assert made is not None
    meta = work.meta(made)
    args = (
        Ref(logits),
        Ref(target),
        Ref(f"{stem}_max"),
        Ref(f"{stem}_sum"),
        Ref(scale),
        ignore,
    )
    work.emit(
        op, cross_entropy_gradient, args, name=made, shape=meta.shape, dtype=meta.dtype
    )


def _parts(work: Rewriting, loss: Loss) -> tuple[str, str, int]:
    """Logits, targets and the index that does not count."""
    logits = work.now(loss.softmax.inputs[0])
    target = work.now(loss.forward.inputs[1])
    return logits, target, loss.forward.args[4]
