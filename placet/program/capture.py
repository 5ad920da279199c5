"""Capture one training step of a plain module as a graph.

    captured = capture(model, batch, loss)
    captured.graph      forward and backward, functional, in aten operators

Nothing is computed: the model's tensors are replaced by fake ones, so a model may be on
the meta device and larger than the machine. Python runs once; what it decides by the
values of tensors cannot be captured, and is refused by module and line. User
checkpoint regions show as operators that the backward computes once more.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from placet.placement.layout import Shape
from placet.program.capture_effects import undone
from placet.program.capture_graph import graph_of
from placet.program.capture_model import (
    FOREIGN,
    ForeignTensors,
    Place,
    Results,
    Step,
    averaging_by_steps,
    called,
    check_traceable,
    explained,
    loss_of,
    mode_of,
    stand_in,
)
from placet.program.graph import Graph, TensorMeta
from placet.program.signature import target_name
from placet.torch_private.aot import Joint, export_joint
from placet.torch_private.pytree import flatten, unflatten

LossFunction = Callable[[nn.Module, Any], Any]
"""(model, batch) -> the mean over the batch's targets, or (mean, number of targets)."""

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Captured:
    """A captured step and what batches it is for.

    Args:
        graph: the step.
        structure: the batch with each tensor replaced by its number among the inputs.
        metas: shape and dtype of each of the batch's tensors.
        fingerprint: equal for models with equal parameters and operators.
        foreign: by the names of their states, tensors that the forward reads and that
            are none of the model's or the batch's; each step reads what they then hold.
        result: for a step without backward, what the functions returned.
    """

    graph: Graph
    structure: str
    metas: tuple[TensorMeta, ...]
    fingerprint: str
    foreign: Mapping[str, Tensor] = field(default_factory=dict)
    result: Results | None = None

    def flatten(self, batch: Any) -> list[Tensor]:
        """A batch's tensors in the order of `graph.inputs`.

        Raises:
            ValueError: another structure, shape or dtype than the captured one.
        """
        leaves, structure = flatten(batch)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if _structure_text(leaves, structure) != self.structure:
            raise ValueError(
                f"the plan is for batches like {self.structure}, got "
                f"{_structure_text(leaves, structure)}; plan again for this kind"
            )
        for i, (tensor, meta) in enumerate(zip(tensors, self.metas, strict=True)):
            found = TensorMeta(tuple(tensor.shape), tensor.dtype)
            if found != meta:
                raise ValueError(
                    f"tensor {i} of the batch is {list(found.shape)} {found.dtype}, "
                    f"the plan is for {list(meta.shape)} {meta.dtype}; plan again"
                )
        return tensors

    def returned(self, tensors: Sequence[Tensor]) -> Any:
        """What the captured function returned, with other tensors in it.

        Args:
            tensors: loss and count if the graph has them, then its extras.
        """
        assert self.result is not None
        leaves = [
            tensors[leaf.number] if isinstance(leaf, Place) else leaf
            for leaf in self.result.leaves
        ]
        return unflatten(leaves, self.result.structure)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the batch's tensors."""
        return tuple(meta.shape for meta in self.metas)


def capture(
    model: nn.Module,
    batch: Any,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    *,
    trains: bool = True,
    precision: Precision = "fp32",
) -> Captured:
    """Capture a step of a model.

    Args:
        model: any device, also meta; it is left as it is.
        batch: a sample; the same structure and shapes as in training.
        loss: as for `placet.Job`; without it the model is called with the batch and
            must return the loss, or have it as `.loss` or as its first item. Without
            backward it may return anything, and is the model itself if left out.
        trains: with backward, in the mode (train or eval) that the model is in; or else
            a forward in eval mode.
        precision: "bf16" captures under autocast.

    Raises:
        CaptureError: the loss is no 0-d tensor that depends on a parameter; values of
            tensors decide what runs; the forward changed the model's attributes or the
            batch.
        ValueError: no module.
    """
    leaves, structure = flatten(batch)
    check_traceable(model, leaves)
    given = tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    device = next((t.device.type for t in model.parameters()), "cpu")
    asked = loss or (loss_of if trains else called)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(trains))
        traced = model
        if device == "meta":
            traced, tensors = stack.enter_context(stand_in(model, tensors))
        if precision == "bf16":
            kind = "cpu" if device == "meta" else device
            stack.enter_context(torch.autocast(kind, dtype=torch.bfloat16))
        stack.enter_context(mode_of(traced, trains=trains))
        stack.enter_context(undone(traced))
        stack.enter_context(averaging_by_steps(traced))
        stack.enter_context(explained(traced))
        named = _names_by_id(model) | _names_by_id(traced)

        def step(foreign: Sequence[Tensor]) -> Step:
            return Step(
                traced,
                asked,
                leaves,
                structure,
                named=named,
                foreign=foreign,
                trains=trains,
            )

        joint, made, foreign = _exported(step, tensors)
    assert made.results is not None
    names = _known_names(model) | _foreign_names(traced, foreign)
    graph, large = graph_of(joint, names, made.results, trains=trains)
    known = {names[f"{FOREIGN}{i}"]: tensor for i, tensor in enumerate(foreign)}
    known |= large
    return Captured(
        graph,
        _structure_text(leaves, structure),
        tuple(TensorMeta(tuple(t.shape), t.dtype) for t in given),
        fingerprint(graph),
        {s.name: known[s.name] for s in graph.states if s.is_foreign},
        replace(made.results, tensors=()),
    )


def _exported(
    step: Callable[[Sequence[Tensor]], Step], tensors: Sequence[Tensor]
) -> tuple[Joint, Step, tuple[Tensor, ...]]:
    """Trace a step, as often as it turns out to read further foreign tensors."""
    foreign: tuple[Tensor, ...] = ()
    while True:
        module = step(foreign)
        try:
            return export_joint(module, tensors), module, foreign
        except ForeignTensors as found:
            foreign += found.tensors


def fingerprint(graph: Graph) -> str:
    """A hash of a graph's states and operators, the same in every process."""
    text = hashlib.sha256()
    for line in fingerprint_lines(graph):
        text.update(line.encode())
    return text.hexdigest()[:24]


def fingerprint_lines(graph: Graph) -> list[str]:
    """What a fingerprint is made of: a line for each state and each operator."""

    def meta(name: str | None) -> str:
        if name is None:
            return "-"
        found = graph.tensors[name]
        return f"{list(found.shape)} {found.dtype}"

    lines = [f"{s.name} {meta(s.tensor)} {s.new is not None}" for s in graph.states]
    for op in graph.ops:
        made = ", ".join(map(meta, op.outputs))
        lines.append(f"{target_name(op.target)}{op.args!r}{op.kwargs!r} -> {made}")
    return lines


def _structure_text(leaves: list[Any], structure: Any) -> str:
    """A batch's structure and constants as text."""
    kinds = ["*" if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    return f"{structure} of {', '.join(kinds)}"


def state_tensors(
    model: nn.Module, graph: Graph, foreign: Mapping[str, Tensor] | None = None
) -> Mapping[str, Tensor]:
    """The model's tensors by the names of the graph's states.

    Args:
        foreign: as `Captured` has them.
    """
    found: dict[str, Tensor] = {n: p.detach() for n, p in model.named_parameters()}
    found |= dict(model.named_buffers())
    found |= foreign or {}
    return {state.name: found[state.name] for state in graph.states}


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers, tied ones under each of their names."""
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _names_by_id(model: nn.Module) -> dict[int, str]:
    return {id(tensor): name for name, tensor in _named(model)}


def _known_names(model: nn.Module) -> dict[str, str]:
    """Every name of every tensor of a model -> the name that the model lists it by."""
    first: dict[int, str] = {id(p): n for n, p in model.named_parameters()}
    first |= {id(b): n for n, b in model.named_buffers()}
    return {name: first[id(tensor)] for name, tensor in _named(model)}


def _foreign_names(model: nn.Module, foreign: Sequence[Tensor]) -> dict[str, str]:
    """What people may call foreign tensors: the attributes that they are, if any."""
    known = {
        id(value): f"{path}.{name}".removeprefix(".")
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    }
    return {
        f"{FOREIGN}{i}": known.get(id(tensor), f"{FOREIGN}{i}")
        for i, tensor in enumerate(foreign)
    }
