"""Forward and backward of a module as one graph, by AOTAutograd.

What AOTAutograd calls parameters, buffers, plain inputs, gradients and mutations comes
out as `Described` values, so that no other file knows its descriptors.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, nn
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
)

DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
)
"""What tracing raises where values decide which operators run, or their sizes."""

Kind = Literal[
    "parameter", "buffer", "input", "tangent", "output", "gradient", "mutation"
]


@dataclass(frozen=True)
class Described:
    """What an input or output of the joint graph is.

    Args:
        kind: of it.
        of: a parameter's or buffer's name, or the number of a plain input or output.
        node: in the graph.
    """

    kind: Kind
    of: str | int
    node: torch.fx.Node


@dataclass(frozen=True)
class Joint:
    """A joint graph with its inputs and outputs described."""

    graph: torch.fx.Graph
    module: torch.fx.GraphModule
    inputs: tuple[Described, ...]
    outputs: tuple[Described, ...]


def export_joint(module: nn.Module, args: Sequence[Tensor]) -> Joint:
    """Forward and backward of a module, functional, on fake tensors.

    A module whose outputs need no gradient has a forward only.
    """
    with ExitStack() as stack, _module_paths(module):
        found = aot_export_joint_with_descriptors(stack, module, tuple(args), {})
    graph = found.graph_module.graph
    inputs = [_input(n) for n in graph.nodes if n.op == "placeholder"]
    (last,) = [n for n in graph.nodes if n.op == "output"]
    pairs = zip(last.args[0], last.meta["desc"], strict=True)
    outputs = [_output(node, desc) for node, desc in pairs if node is not None]
    return Joint(
        graph,
        found.graph_module,
        tuple(inputs),
        tuple(d for d in outputs if d is not None),
    )


def fake_mode() -> FakeTensorMode:
    """Tensors that are made in it have no values."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def module_of(node: torch.fx.Node) -> str:
    """The path of the submodule that a node, or its forward node, belongs to."""
    found = node.meta.get("custom", {}).get(_PATH, "")
    return str(found)


_PATH = "placet_module"


@contextmanager
def _module_paths(module: nn.Module) -> Iterator[None]:
    """Have every node say which submodule it belongs to."""
    stack: list[str] = []
    handles = []

    def enter(path: str) -> Any:
        def hook(*_: Any) -> None:
            stack.append(path)
            fx_traceback.current_meta["custom"] = {_PATH: path}

        return hook

    def leave(*_: Any) -> None:
        stack.pop()
        fx_traceback.current_meta["custom"] = {_PATH: stack[-1] if stack else ""}

    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(enter(path)))
        handles.append(child.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        fx_traceback.current_meta.pop("custom", None)


def _input(node: torch.fx.Node) -> Described:
    match node.meta["desc"]:
        case ParamAOTInput(target=target):
            return Described("parameter", target, node)
        case BufferAOTInput(target=target):
            return Described("buffer", target, node)
        case PlainAOTInput(idx=idx):
            return Described("input", idx, node)
        case TangentAOTInput(output=PlainAOTOutput(idx=idx)):
            return Described("tangent", idx, node)
        case other:
            raise NotImplementedError(f"the graph has an input {other}")


def _output(node: torch.fx.Node, desc: object) -> Described | None:
    match desc:
        case PlainAOTOutput(idx=idx):
            return Described("output", idx, node)
        case GradAOTOutput(grad_of=ParamAOTInput(target=target)):
            return Described("gradient", target, node)
        case InputMutationAOTOutput(mutated_input=BufferAOTInput(target=target)):
            return Described("mutation", target, node)
        case None | GradAOTOutput():
            return None
        case other:
            raise NotImplementedError(f"the graph has an output {other}")
