"""Forward and backward of a module as one graph, by AOTAutograd.

What AOTAutograd calls parameters, buffers, plain inputs, gradients and mutations comes
out as `Described` values, so that no other file knows its descriptors.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
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
from torch._higher_order_ops.effects import _register_effectful_op
from torch._library.effects import EffectType
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
)
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes

DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
)
"""What tracing raises where values decide which operators run, or their sizes."""


DISTRIBUTED = (
    nn.parallel.DistributedDataParallel,
    nn.DataParallel,
    FullyShardedDataParallel,
)
"""Modules that divide the work of the module that they hold."""


class NotCaptured(Exception):
    """A step has inputs or outputs that no graph of ours has."""


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

    A module whose outputs need no gradient has a forward only. Where values of tensors
    decide what runs, it is traced once more as under a compiler: libraries then leave
    out shortcuts that depend on values.

    Raises:
        DATA_DEPENDENT: one of these, where a compiler's path reads values, too.
    """
    try:
        return _exported(module, args)
    except DATA_DEPENDENT as error:
        first = error
    try:
        with _as_compiling():
            return _exported(module, args)
    except DATA_DEPENDENT:
        raise first from None


def _exported(module: nn.Module, args: Sequence[Tensor]) -> Joint:
    with ExitStack() as stack, ExitStack() as while_tracing:
        contexts = _module_paths(module), _checkpoints(module), _no_effects()
        for context in (*contexts, _nothing_compiled(), _no_whole_layers()):
            while_tracing.enter_context(context)
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


def is_traced(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a trace; or else it was there before, with values."""
    if type(tensor) not in (Tensor, nn.Parameter):
        return True
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def gradient_hooks(parameter: Tensor) -> list[Callable[[Tensor], Any]]:
    """The functions that a parameter's gradient goes through."""
    return list((parameter._backward_hooks or {}).values())


def add_hook(tensor: Tensor, hook: Callable[[Tensor], Any]) -> None:
    """Have a tensor's gradient go through a function."""
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def hooks_after(parameter: Tensor) -> list[Callable[[Tensor], Any]]:
    """The functions that wait for a parameter's gradient to be accumulated."""
    return list(
        (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    )


def fake_mode() -> FakeTensorMode:
    """Tensors that are made in it have no values."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def without_tracing() -> Iterator[None]:
    """Functions compute real tensors, as outside of a capture."""
    with _disable_current_modes(), torch.no_grad():
        yield


@contextmanager
def _as_compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextmanager
def _no_effects() -> Iterator[None]:
    """Checks of linear algebra are left out: they make no tensor, and have an order."""
    check = "aten::_linalg_check_errors"
    _register_effectful_op(check, None)
    try:
        yield
    finally:
        _register_effectful_op(check, EffectType.ORDERED)


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """What `torch.compile` has made runs as it was written."""
    with (
        torch.compiler.set_stance("force_eager"),
        dynamo_config.patch(error_on_nested_fx_trace=False),
    ):
        yield


@contextmanager
def _no_whole_layers() -> Iterator[None]:
    """Recurrent layers are traced step by step.

    oneDNN has them as one operator, which has a workspace and so cannot be divided.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _checkpoints(module: nn.Module) -> Iterator[None]:
    """Have the backward compute checkpoint regions once more.

    `torch.utils.checkpoint` does so in hooks on saved tensors. AOTAutograd turns hooks
    off while it traces (it expects a compiler to have marked the regions), and back to
    what they were when it is done. The model has its traced tensors in the forward
    only, so a region puts them into it again.
    """

    def keep_hooks(*_: Any) -> None:
        torch._C._autograd._saved_tensors_hooks_set_tracing(False)

    original = checkpoint._CheckpointFrame
    reentrant = checkpoint.CheckpointFunction

    def frame(recompute: Callable[..., None], *rest: Any) -> Any:
        traced: dict[str, Tensor] = {}
        traced.update(module.named_parameters(remove_duplicate=False))
        traced.update(module.named_buffers(remove_duplicate=False))

        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]

        def recompute_traced(*args: Any) -> None:
            before = fx_traceback.current_meta.pop("custom", None)
            fx_traceback.current_meta["custom"] = {_AGAIN + _PATH: ""}
            try:
                with ExitStack() as stack, _reparametrize_module(module, traced):
                    for mode in modes:
                        stack.enter_context(mode)
                    recompute(*args)
            finally:
                fx_traceback.current_meta.pop("custom", None)
                if before is not None:
                    fx_traceback.current_meta["custom"] = before

        return original(recompute_traced, *rest)

    handle = module.register_forward_pre_hook(keep_hooks)
    checkpoint._CheckpointFrame = frame  # type: ignore[assignment, misc]
    checkpoint.CheckpointFunction = _Reentrant  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]
        checkpoint._CheckpointFrame = original  # type: ignore[misc]
        handle.remove()


class _Reentrant:
    """In the place of torch's checkpoint that runs a backward inside of a backward."""

    @staticmethod
    def apply(*_: Any) -> None:
        """Refuse it.

        Raises:
            NotCaptured: always.
        """
        raise NotCaptured(
            "checkpoint(..., use_reentrant=True) runs a backward pass of its own, "
            "which is in no graph: pass use_reentrant=False"
        )


def module_of(node: torch.fx.Node) -> str:
    """The path of the submodule that a node, or its forward node, belongs to."""
    custom = node.meta.get("custom", {})
    return str(custom.get(_AGAIN + _PATH, custom.get(_PATH, "")))


def line_of(node: torch.fx.Node) -> str:
    """The line that called a node, or its forward node; see `note_line`."""
    custom = node.meta.get("custom", {})
    return str(custom.get(_AGAIN + _LINE, custom.get(_LINE, "")))


def is_recomputed(node: torch.fx.Node) -> bool:
    """Whether a node repeats one of the forward, in a checkpoint region."""
    return _AGAIN + _PATH in node.meta.get("custom", {})


def note_line(line: str) -> None:
    """The nodes that are traced from here on were called in a line."""
    _note(_LINE, line)


def _note(key: str, value: str) -> None:
    custom = dict(fx_traceback.current_meta.get("custom", {}))
    if _AGAIN + _PATH in custom:
        key = _AGAIN + key
    fx_traceback.current_meta["custom"] = {**custom, key: value}


_PATH = "placet_module"
_LINE = "placet_line"
_AGAIN = "again_"
"""Of notes in the repetition of a checkpoint region: a backward node has the notes of
its forward node put over its own."""


@contextmanager
def _module_paths(module: nn.Module) -> Iterator[None]:
    """Have every node say which submodule it belongs to."""
    stack: list[str] = []
    handles = []

    def enter(path: str) -> Any:
        def hook(*_: Any) -> None:
            stack.append(path)
            _note(_PATH, path)

        return hook

    def leave(*_: Any) -> None:
        stack.pop()
        _note(_PATH, stack[-1] if stack else "")

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
        case TangentAOTInput(output=InputMutationAOTOutput(mutated_input=changed)):
            raise _changes(changed)
        case other:
            raise NotCaptured(f"a step with an input {other} cannot be captured")


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
        case InputMutationAOTOutput(mutated_input=changed):
            raise _changes(changed)
        case other:
            raise NotCaptured(f"a step with an output {other} cannot be captured")


def _changes(changed: object) -> NotCaptured:
    match changed:
        case PlainAOTInput(idx=idx):
            what = f"tensor {idx} of the batch"
        case ParamAOTInput(target=target) | BufferAOTInput(target=target):
            what = repr(target.removeprefix("model."))
        case other:
            what = str(other)
    return NotCaptured(
        f"the forward changes {what} in place, which a plan cannot divide: change a "
        "clone of it"
    )
