"""What the passes share: a graph that is being rewritten, op by op.

A pass walks the ops in order and emits new ones; a tensor that is another one under a
new name is `same_as` it, and whoever reads it reads that one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from placet.placement.layout import Shape
from placet.program.capture_graph import live
from placet.program.graph import Graph, Op, Ref, TensorMeta, replace_refs


class Rewriting:
    """The new graph of a pass, while it is made."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = dict(graph.tensors)
        self.ops: list[Op] = []
        self.same: dict[str, str] = {}

    def now(self, name: str) -> str:
        """The tensor that stands for a name."""
        return self.same.get(name, name)

    def meta(self, name: str) -> TensorMeta:
        """Shape and dtype of a tensor."""
        return self.tensors[self.now(name)]

    def same_as(self, name: str, other: str) -> None:
        """A tensor is another one, under a new name."""
        self.same[name] = self.now(other)

    def keep(self, op: Op) -> Op:
        """Emit an op, reading what now stands for its inputs."""
        kept = self.current(op)
        self.ops.append(kept)
        return kept

    def current(self, op: Op) -> Op:
        """An op that reads what now stands for its inputs."""

        def now(ref: Ref) -> Ref:
            return Ref(self.now(ref.name))

        args = replace_refs(op.args, now)
        kwargs = tuple((name, replace_refs(v, now)) for name, v in op.kwargs)
        return replace(op, args=args, kwargs=kwargs)

    def emit(
        self,
        like: Op,
        target: Callable[..., Any],
        args: Sequence[Any],
        *,
        name: str,
        shape: Shape,
        dtype: torch.dtype | None = None,
        kwargs: tuple[tuple[str, Any], ...] = (),
    ) -> str:
        """Emit a new op with one output; returns its tensor.

        Args:
            like: whose phase, module and line it has.
            name: of the tensor and of the op.
            dtype: that of the first tensor among the arguments, unless said.
        """
        refs = [arg for arg in args if isinstance(arg, Ref)]
        dtype = dtype or self.meta(refs[0].name).dtype
        self.tensors[name] = TensorMeta(shape, dtype)
        self.ops.append(
            Op(
                name,
                target,
                tuple(args),
                kwargs,
                (name,),
                False,
                like.phase,
                like.module,
                like.line,
            )
        )
        return name

    def done(self) -> Graph:
        """The new graph, without ops that nothing depends on."""
        graph = self.graph
        states = tuple(
            replace(s, new=None if s.new is None else self.now(s.new))
            for s in graph.states
        )
        new = replace(
            graph,
            tensors=self.tensors,
            ops=tuple(self.ops),
            states=states,
            loss=None if graph.loss is None else self.now(graph.loss),
            count=None if graph.count is None else self.now(graph.count),
            extras=tuple(map(self.now, graph.extras)),
        )
        return live(new)
