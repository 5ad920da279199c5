"""From a joint fx graph to our own: names, several outputs, constants, tangents."""

import operator as python_operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from placet.errors import CaptureError
from placet.program.capture_dtypes import correct_dtypes
from placet.program.capture_model import FOREIGN, Results
from placet.program.capture_recomputed import draws, share_random
from placet.program.functions.constant import constant
from placet.program.graph import Graph, Op, Ref, State, TensorMeta
from placet.program.rules import random
from placet.torch_private.aot import Joint, is_recomputed, line_of, module_of

_MODEL = "model."
MAX_CONSTANT = 1 << 16
"""Elements of a tensor made of Python values that an operator's arguments may hold."""


def graph_of(
    joint: Joint, names: Mapping[str, str], results: Results, *, trains: bool
) -> tuple[Graph, Mapping[str, Tensor]]:
    """The graph of a captured step, and its large constants by their states' names.

    Args:
        names: what the model calls each tensor that a module has under some name; tied
            ones have several there.
        results: what the outputs are.

    Raises:
        CaptureError: no trainable parameter has a gradient; a sparse tensor; numbers
            that cannot be drawn by key; a changed tensor that is no buffer.
    """
    builder = _Builder(joint)
    known = {
        d.node: names[str(d.of).removeprefix(_MODEL)]
        for d in joint.inputs
        if d.kind in ("parameter", "buffer")
    }
    builder.run(known)
    outputs = [builder.name(d.node) for d in joint.outputs if d.kind == "output"]
    num_results = len(results.tensors)
    made = dict(zip(results.news, outputs[num_results:], strict=True))
    states = _states(joint, builder, known, names, made)
    large = (State(n, n, None, False, is_foreign=True) for n in builder.large)
    trained = any(s.new for s in states if s.is_parameter)
    if trains and not trained:
        raise CaptureError(
            "the loss depends on no parameter that trains; check requires_grad, and "
            "that the loss is computed from the model's output"
        )
    inputs = {d.of: d.node.name for d in joint.inputs if d.kind == "input"}
    graph = Graph(
        builder.tensors,
        tuple(builder.ops),
        (*states, *large),
        tuple(inputs[i] for i in sorted(inputs)),
        outputs[0] if results.has_loss else None,
        outputs[1] if results.has_count else None,
        tuple(outputs[results.has_loss + results.has_count : num_results]),
    )
    return _with_phases(share_random(graph, builder.recomputed)), builder.large


def _states(
    joint: Joint,
    builder: "_Builder",
    known: Mapping[torch.fx.Node, str],
    names: Mapping[str, str],
    made: Mapping[str, str],
) -> tuple[State, ...]:
    """Parameters and buffers; the gradients of tied ones are summed.

    Args:
        made: buffer -> what the forward has set it to.
    """
    news: dict[str, list[str]] = {}
    for d in joint.outputs:
        if d.kind in ("gradient", "mutation"):
            name = names[str(d.of).removeprefix(_MODEL)]
            if str(d.of).startswith(FOREIGN) and d.kind == "mutation":
                raise CaptureError(
                    f"the forward changes {name!r} in place, a tensor that is no "
                    "buffer; what goes from step to step must be a buffer"
                )
            news.setdefault(name, []).append(builder.name(d.node))
    news |= {names[buffer]: [tensor] for buffer, tensor in made.items()}
    found = {known[d.node]: d for d in joint.inputs if d.node in known}
    read = {name for op in builder.ops for name in op.inputs}
    read.update(*news.values())
    return tuple(
        State(name, builder.first[name], builder.sum(news.get(name, [])), *kinds)
        for name, d in found.items()
        for kinds in [(d.kind == "parameter", str(d.of).startswith(FOREIGN))]
        if not kinds[1] or builder.first[name] in read
    )


class _Builder:
    """Turns fx nodes into ops, in order."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.tensors: dict[str, TensorMeta] = {}
        self.ops: list[Op] = []
        self.names: dict[torch.fx.Node, str] = {}
        self.first: dict[str, str] = {}
        self.recomputed: set[str] = set()
        self.large: dict[str, Tensor] = {}

    def name(self, node: torch.fx.Node) -> str:
        """The tensor that a node stands for."""
        return self.names[node]

    def run(self, known: Mapping[torch.fx.Node, str]) -> None:
        """Every node of the graph; `known` are its states, tied ones several times."""
        tangents = {d.node for d in self.joint.inputs if d.kind == "tangent"}
        for node in self.joint.graph.nodes:
            if node in known and known[node] in self.first:
                self.names[node] = self.first[known[node]]
            elif node.op == "placeholder":
                self._declare(node)
                if node in known:
                    self.first[known[node]] = node.name
                if node in tangents:
                    self._add_ones(node)
            elif node.op == "get_attr":
                self._add_constant(node)
            elif node.op == "call_function":
                self._add_call(node)

    def sum(self, terms: list[str]) -> str | None:
        """The sum of some tensors, such as a tied parameter's gradients."""
        if not terms:
            return None
        total = terms[0]
        for term in terms[1:]:
            name = f"{total}_and_{term}"
            self.tensors[name] = self.tensors[total]
            args = (Ref(total), Ref(term))
            add = torch.ops.aten.add.Tensor
            self.ops.append(Op(name, add, args, (), (name,), False, "backward"))
            total = name
        return total

    def _declare(self, node: torch.fx.Node) -> str:
        value = node.meta["val"]
        if value.layout != torch.strided:
            raise CaptureError(
                f"{_place(node)}: {node.target} makes a sparse tensor, and a plan "
                "divides dense ones: pass sparse=False, or make it dense"
            )
        self.tensors[node.name] = TensorMeta(tuple(map(int, value.shape)), value.dtype)
        self.names[node] = node.name
        return node.name

    def _add_ones(self, node: torch.fx.Node) -> None:
        """The tangent of the loss is one."""
        dtype = node.meta["val"].dtype
        self._add(node, torch.ops.aten.ones.default, ((),), (("dtype", dtype),))

    def _add_constant(self, node: torch.fx.Node) -> None:
        value: Any = self.joint.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, Tensor):
            return
        self.names[node] = node.name
        shape = tuple(map(int, value.shape))
        self.tensors[node.name] = TensorMeta(shape, value.dtype)
        if value.numel() > MAX_CONSTANT:
            self.large[node.name] = value
            return
        values = tuple(value.reshape(-1).tolist())
        self._add(node, constant, (values, shape, value.dtype), ())

    def _add_call(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if node.target is python_operator.getitem:
            return  # a name of its producer's
        if isinstance(value, Tensor):
            self._declare(node)
            self._add_op(node, (node.name,), returns_tuple=False)
            return
        if not isinstance(value, tuple | list):
            return  # an assertion or the like: it makes no tensor
        outputs: list[str | None] = [None] * len(value)
        for user in node.users:
            if user.target is python_operator.getitem and user.users:
                index = user.args[1]
                assert isinstance(index, int)
                if outputs[index] is None:
                    outputs[index] = self._declare(user)
                self.names[user] = outputs[index] or user.name
        self._add_op(node, tuple(outputs), returns_tuple=True)

    def _add_op(
        self,
        node: torch.fx.Node,
        outputs: tuple[str | None, ...],
        *,
        returns_tuple: bool,
    ) -> None:
        args = _refs(node.args, self.names)
        kwargs = tuple(
            (name, _refs(v, self.names))
            for name, v in node.kwargs.items()
            if not isinstance(v, torch.device) and name not in ("layout", "pin_memory")
        )
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        op = Op(
            node.name,
            target,
            args,
            kwargs,
            outputs,
            returns_tuple,
            "forward",
            module_of(node).removeprefix("model").removeprefix("."),
            line_of(node),
        )
        if draws(op) and target not in random.RULES:
            raise CaptureError(
                f"{_place(node)}: {target} draws random numbers in a way that depends "
                "on the number of ranks: build it from torch.rand, randn, randint, "
                "bernoulli or dropout"
            )
        self.ops.append(op)
        correct_dtypes(op, self.tensors)
        if is_recomputed(node):
            self.recomputed.add(node.name)

    def _add(
        self,
        node: torch.fx.Node,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
    ) -> None:
        self.ops.append(
            Op(node.name, target, args, kwargs, (node.name,), False, "forward")
        )


def _place(node: torch.fx.Node) -> str:
    module = module_of(node).removeprefix("model").removeprefix(".")
    return f"{line_of(node) or 'a line'}, in module {module or 'the model itself'!r}"


def _refs(value: Any, names: dict[torch.fx.Node, str]) -> Any:
    if isinstance(value, torch.fx.Node):
        return Ref(names[value])
    if isinstance(value, tuple | list):
        return tuple(_refs(item, names) for item in value)
    if isinstance(value, torch.SymInt):
        return int(value)
    return value


def _with_phases(graph: Graph) -> Graph:
    """Ops that the loss, count or new buffers need are the forward; dead ones go."""
    made = {name: op for op in graph.ops for name in op.outputs if name is not None}
    ends = [graph.loss, graph.count, *graph.extras]
    ends += [s.new for s in graph.states if not s.is_parameter]
    forward = _needed([n for n in ends if n is not None], made)
    ops = tuple(
        replace(op, phase="forward" if op.name in forward else "backward")
        for op in graph.ops
    )
    return live(replace(graph, ops=ops))


def live(graph: Graph) -> Graph:
    """The graph without ops, outputs and tensors that no result depends on."""
    made = {name: op for op in graph.ops for name in op.outputs if name is not None}
    needed = _needed(list(graph.results), made)
    ops = tuple(op for op in graph.ops if op.name in needed)
    read = {name for op in ops for name in op.inputs} | set(graph.results)
    ops = tuple(
        replace(op, outputs=tuple(n if n in read else None for n in op.outputs))
        for op in ops
    )
    used = read | {state.tensor for state in graph.states} | set(graph.inputs)
    tensors = {name: meta for name, meta in graph.tensors.items() if name in used}
    return replace(graph, tensors=tensors, ops=ops)


def _needed(ends: list[str], made: dict[str, Op]) -> set[str]:
    found: set[str] = set()
    left = [made[n] for n in ends if n in made]
    while left:
        op = left.pop()
        if op.name not in found:
            found.add(op.name)
            left += [made[n] for n in op.inputs if n in made]
    return found
