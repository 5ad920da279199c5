"""Gradients on their way from backward to the optimizer.

Autograd makes a gradient; a hook on the parameter puts it where its boxing expects it
and tells the executor, which submits the boxing as soon as its bucket is complete:

    boxed to B     a bucket is one flat buffer; a large gradient is reduced where it is
    boxed to S(0)  the bucket packs the gradients and keeps only this rank's parts

With the last bucket travel the totals: the sum of the losses, the count of targets, the
stop requests and, for each parameter, how many ranks used it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from placet.placement.placement import Broadcast
from placet.program.data_parallel import NUM_SUMS, TOTALS
from placet.program.node import Boxing
from placet.program.program import Program
from placet.run.executor import Binding, Executor
from placet.torch_private.foreach import copy

_GRAD = ".grad"


@dataclass(frozen=True)
class Totals:
    """Sums over all ranks of one step."""

    loss_sum: float
    num_targets: float
    num_stop_requests: float
    unused: frozenset[str]

    @property
    def divisor(self) -> float:
        """What sums over targets are divided by; 1 where there were no targets."""
        return self.num_targets if self.num_targets > 0 else 1.0


@dataclass
class Gradients:
    """The gradients of one program on this rank.

    Args:
        executor: fires the boxings.
        parameters: the model's own parameters, by name.
        targets: what the optimizer updates, by name: the same, or parts of them.
        late: names whose gradients are boxed once a step, whatever `keeps_parts` says.
        keeps_parts: gradients are boxed after every micro-batch and parts are summed.
    """

    executor: Executor
    parameters: Mapping[str, nn.Parameter]
    targets: Mapping[str, nn.Parameter]
    keeps_parts: bool
    late: set[str] = field(default_factory=set)
    totals: Tensor = field(default_factory=lambda: torch.zeros(0))
    used: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)
    sums: list[float] = field(default_factory=lambda: [0.0] * NUM_SUMS)
    fires: bool = False
    kept: dict[str, Tensor | None] = field(default_factory=dict)
    is_last: bool = False

    def begin_step(self) -> None:
        """Forget the last step's gradients."""
        self.sums = [0.0] * NUM_SUMS
        self.used.clear()
        for name, parameter in self.parameters.items():
            parameter.grad = None
            self.targets[name].grad = None

    def add_loss(self, loss_sum: float, num_targets: float, stop: bool) -> None:
        """Count one micro-batch's loss, targets and stop request in."""
        self.sums[0] += loss_sum
        self.sums[1] += num_targets
        self.sums[2] += stop

    def begin_backward(self, *, is_last: bool) -> None:
        """A backward is about to run; `is_last` of the step's micro-batches or not."""
        self.is_last = is_last
        self.fires = is_last or self.keeps_parts
        if self.fires:
            if self.keeps_parts:
                self.executor.wait_queue("grads")
                self.executor.rewind("grads")
            self.awaited = set(self.parameters) - (set() if is_last else self.late)

    def end_backward(self) -> None:
        """Give up waiting for gradients that this rank's backward did not make."""
        if self.fires:
            for name in [n for n in self.parameters if n in self.awaited]:
                self._arrive(name)

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """A backward that counts for nothing (no targets): keep what there was."""
        self.kept = {name: p.grad for name, p in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        yield
        for name, grad in self.kept.items():
            self.parameters[name].grad = grad
        self.kept = {}

    def made(self, name: str, parameter: nn.Parameter) -> None:
        """Autograd has added to a parameter's gradient (its hook)."""
        self.used.add(name)  # by rows without targets as well: they have zeros for it
        if name in self.kept:
            parameter.grad = self.kept.pop(name)
        if self.fires:
            self._arrive(name)

    def _arrive(self, name: str) -> None:
        if name not in self.awaited:
            return
        self.awaited.remove(name)
        last = self.is_last and not self.awaited
        if last:
            flags = [float(n in self.used) for n in self.parameters]
            self.totals.copy_(torch.tensor([*self.sums, *flags], dtype=torch.float64))
        self.executor.ready(name + _GRAD)
        if last:
            self.executor.ready(TOTALS)

    def give(self, name: str) -> Tensor | None:
        """Hand a gradient over to its boxing; the parameter has none after it."""
        parameter = self.parameters[name]
        grad, parameter.grad = parameter.grad, None
        return grad.to_dense() if grad is not None and grad.is_sparse else grad

    def take(self) -> Totals:
        """Wait for every boxing; afterwards targets hold the reduced gradients."""
        self.executor.wait_queue("grads")
        self.executor.wait_queue(TOTALS)
        values = self.totals.tolist()
        flags = zip(self.parameters, values[NUM_SUMS:], strict=True)
        nothing = values[1] == 0  # no targets anywhere: nothing is learnt in this step
        unused = frozenset(name for name, count in flags if nothing or count == 0)
        for name in unused:
            self.targets[name].grad = None
        return Totals(values[0], values[1], values[2], unused)


def collect_gradients(
    program: Program,
    executor: Executor,
    parameters: Mapping[str, nn.Parameter],
    targets: Mapping[str, nn.Parameter],
    *,
    keeps_parts: bool,
) -> Gradients:
    """Bind a program's gradient boxings to buffers, and hook the parameters.

    Args:
        parameters: the trainable ones, in the model's order.
        targets: what the optimizer updates for each.
        keeps_parts: ZeRO level 2 and 3.
    """
    gradients = Gradients(executor, parameters, targets, keeps_parts)
    for boxing in program.boxings():
        if boxing.queue not in ("grads", TOTALS):
            continue
        if boxing.queue == TOTALS:
            gradients.late.update(n.removesuffix(_GRAD) for n in boxing.inputs)
        if not all(isinstance(p, Broadcast) for p in boxing.dst.placements):
            _bind_parts(program, boxing, gradients)
        elif len(boxing.inputs) == 1 and boxing.inputs != (TOTALS,):
            _bind_alone(program, boxing, gradients)
        else:
            _bind_whole(program, boxing, gradients)
    return gradients


def _bind_whole(program: Program, boxing: Boxing, gradients: Gradients) -> None:
    """Reduce a bucket of whole gradients, in one flat buffer."""
    specs = [program.tensors[name] for name in boxing.inputs]
    sizes = [torch.Size(spec.shape).numel() for spec in specs]
    device = next(iter(gradients.targets.values())).device  # none may train now
    flat = torch.zeros(sum(sizes), dtype=specs[0].dtype, device=device)
    slots: dict[str, Tensor] = {}
    for name, spec, piece in zip(
        boxing.inputs, specs, torch.split(flat, sizes), strict=True
    ):
        if name == TOTALS:
            gradients.totals = piece
        else:
            slots[name.removesuffix(_GRAD)] = piece.view(spec.shape)

    def fill() -> Tensor:
        found = {name: gradients.give(name) for name in slots}
        there = [name for name, grad in found.items() if grad is not None]
        copy([slots[n] for n in there], [g for g in found.values() if g is not None])
        for name in slots.keys() - there:
            slots[name].zero_()
        return flat

    def sink(_: Sequence[Tensor]) -> None:
        for name, slot in slots.items():
            gradients.targets[name].grad = slot

    gradients.executor.bind(boxing.name, Binding(list, sink, fill))


def _bind_alone(program: Program, boxing: Boxing, gradients: Gradients) -> None:
    """Reduce one large gradient where it is, without a copy."""
    (grad_name,) = boxing.inputs
    name, spec = grad_name.removesuffix(_GRAD), program.tensors[grad_name]
    device = gradients.parameters[name].device
    held: list[Tensor] = []

    def fill() -> Tensor:
        grad = gradients.give(name)
        if grad is None:
            grad = torch.zeros(spec.shape, dtype=spec.dtype, device=device)
        held.append(grad.contiguous())
        return held[0].view(-1)

    def sink(_: Sequence[Tensor]) -> None:
        gradients.targets[name].grad = held.pop()

    gradients.executor.bind(boxing.name, Binding(list, sink, fill))


def _bind_parts(program: Program, boxing: Boxing, gradients: Gradients) -> None:
    """Pack whole gradients; keep this rank's parts."""
    names = [name.removesuffix(_GRAD) for name in boxing.inputs]

    def source() -> list[Tensor]:
        tensors = []
        for name in names:
            grad = gradients.give(name)
            if grad is None:
                spec, like = program.tensors[name + _GRAD], gradients.parameters[name]
                grad = torch.zeros(spec.shape, dtype=spec.dtype, device=like.device)
            tensors.append(grad)
        return tensors

    def sink(parts: Sequence[Tensor]) -> None:
        for name, part in zip(names, parts, strict=True):
            _add(gradients.targets[name], part)

    gradients.executor.bind(boxing.name, Binding(source, sink))


def _add(target: nn.Parameter, grad: Tensor) -> None:
    if target.grad is None:
        target.grad = grad
    else:
        target.grad += grad
