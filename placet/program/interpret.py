"""Run a captured graph on one device: what every plan must be equal to."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from placet.program.graph import Graph, Op, Ref, replace_refs


def interpret(
    graph: Graph, states: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The results of a graph, by their names in it.

    Args:
        states: whole parameters and buffers, by their names in the model.
        inputs: the batch's tensors, in the order of `graph.inputs`.
    """
    values: dict[str, Tensor] = {s.tensor: states[s.name] for s in graph.states}
    values.update(zip(graph.inputs, inputs, strict=True))
    reads = Counter(name for op in graph.ops for name in op.inputs)
    reads.update(graph.results)
    for op in graph.ops:
        made = call(op, values)
        values.update({n: t for n, t in zip(op.outputs, made, strict=True) if n})
        for name in op.inputs:
            reads[name] -= 1
            if not reads[name]:
                del values[name]
    return {name: values[name] for name in graph.results}


def call(op: Op, values: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The outputs of one operator."""

    def value(ref: Ref) -> Tensor:
        return values[ref.name]

    kwargs = {name: replace_refs(v, value) for name, v in op.kwargs}
    # A pass may have a view read another tensor, with other strides.
    is_view = op.target is torch.ops.aten.view.default
    target = torch.ops.aten.reshape.default if is_view else op.target
    made = target(*replace_refs(op.args, value), **kwargs)
    return tuple(made) if op.returns_tuple else (made,)
