"""One training step of a plain model and optimizer, on any number of ranks.

    begin(step)                       which parameters train; gradients are none
    backward(loss, count)             once a micro-batch; boxings overlap it
    update()                          totals, norm, clipping, the optimizer

The loss that autograd sees is `loss * count / nominal`, a sum up to a constant that
all ranks share; with the totals known, gradients are multiplied by `nominal / total`,
so the mean is over the targets of the global batch, however unevenly ranks have them.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from placet.boxing.ledger import Ledger
from placet.errors import NonFiniteLoss
from placet.placement.layout import Layout, Shape, along
from placet.placement.mesh import Mesh
from placet.placement.placement import Split
from placet.program.blocks import Block, block_name, find_blocks
from placet.program.data_parallel import (
    NORM,
    DataParallel,
    ParameterSpec,
    build_program,
)
from placet.program.program import Program
from placet.run.blocks import BlockHooks, install
from placet.run.events import Observer, ignore
from placet.run.executor import Binding, Executor, in_place
from placet.run.gradients import Gradients, Totals, collect_gradients
from placet.run.loss_scale import LossScale
from placet.run.optimizers import repoint
from placet.run.parameters import (
    StoredBlock,
    bind_gathers,
    bind_updated,
    cut_parts,
    stored_blocks,
)
from placet.run.reads import Reads
from placet.torch_private.foreach import multiply, norms
from placet.wire.interface import Wire


@dataclass(frozen=True)
class UpdateDone:
    """What an update found.

    Args:
        loss: mean over the global batch.
        grad_norm: before clipping; None where nobody asked for it.
        skipped: a gradient overflowed in fp16, so nothing was changed.
        stop: some rank asked to stop after this step.
    """

    loss: float
    num_targets: float
    grad_norm: float | None
    skipped: bool
    stop: bool


@dataclass
class Training:
    """The running form of a data-parallel program.

    Args:
        parts: what the optimizer updates, by name (the parameters at level 0).
        stored: blocks whose parameters come and go (level 3).
        nominal: the constant that losses are divided by; last step's count of targets.
    """

    name: str
    model: nn.Module
    optimizer: Optimizer
    wire: Wire
    mesh: Mesh
    options: DataParallel
    clip_norm: float | None
    scale: LossScale | None
    blocks: tuple[Block, ...]
    parts: dict[str, nn.Parameter]
    stored: dict[str, StoredBlock]
    ledger: Ledger = field(default_factory=Ledger)
    observer: Observer = ignore
    nominal: float = 0.0
    trains: tuple[bool, ...] = ()
    norm_sum: Tensor = field(default_factory=lambda: torch.zeros(1))
    hooked: set[str] = field(default_factory=set)
    settles_first: bool = False
    may_step: bool = False
    owners: dict[int, Block] = field(default_factory=dict)
    program: Program = field(init=False)
    executor: Executor = field(init=False)
    gradients: Gradients = field(init=False)
    hooks: BlockHooks = field(init=False)

    def begin(self, step: int) -> None:
        """A step begins; parameters may have been frozen or thawed since the last."""
        trains = tuple(p.requires_grad for p in self.model.parameters())
        if trains != self.trains:
            self.settle()
            self.trains = trains
            _assemble(self)
        if self.settles_first:
            self.settle()
        self.hooks.begin_step()
        self.executor.begin_step(step)
        self.gradients.begin_step()

    def backward(
        self,
        loss: Tensor,
        num_targets: float,
        *,
        is_last: bool,
        stop: bool = False,
        discard: bool = False,
    ) -> None:
        """Compute gradients of one micro-batch and box those that are complete.

        Args:
            loss: the mean over this rank's targets, 0-d.
            num_targets: how many those are.
            is_last: of the step's micro-batches.
            stop: ask all ranks to stop after this step.
            discard: leave the gradients as they were.

        Raises:
            ValueError: a loss that depends on no parameter.
        """
        if self.nominal == 0.0:
            self.nominal = float(self.options.batch_rows)
        value = float(loss.detach()) if num_targets else 0.0
        self.gradients.add_loss(value * num_targets, num_targets, stop)
        self.gradients.begin_backward(is_last=is_last)
        factor = num_targets / self.nominal * (self.scale.value if self.scale else 1.0)
        # A rank without targets still runs its backward: others may wait for it there.
        if self._has_backward(loss, num_targets):
            self.hooks.in_step = True
            with self.gradients.discarding() if discard else nullcontext():
                (loss * factor).backward()  # type: ignore[no-untyped-call]
        self.gradients.end_backward()
        self.hooks.end_backward()

    def update(self) -> UpdateDone:
        """Take the reduced gradients and let the optimizer use them.

        Raises:
            NonFiniteLoss: names the step and the first parameter whose gradient is not
                finite; no parameter has been changed.
        """
        totals = self.gradients.take()
        self._settle_unused()
        norm, factor = self.prepare(totals)
        skipped = norm is not None and not math.isfinite(norm)
        if self.scale is not None:
            self.scale = self.scale.update(found_inf=skipped)
        elif skipped:
            self._refuse(totals)
        if not skipped:
            self._multiply(factor)
            with self.updating():
                self.executor.run("update", "update", self.optimizer.step)
        self._forget_gradients()
        for boxings in self.hooks.updated.values():
            for boxing in boxings:
                self.executor.submit(boxing)
        loss = totals.loss_sum / totals.divisor
        stop = totals.num_stop_requests > 0
        return UpdateDone(loss, totals.num_targets, norm, skipped, stop)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """The optimizer may step; at other times it would step on one rank's gradients.

        Raises:
            ValueError: from `optimizer.step` outside.
        """
        self.may_step = True
        try:
            yield
        finally:
            self.may_step = False

    @property
    def needs_closure(self) -> bool:
        """Whether the optimizer evaluates the loss itself, several times (LBFGS)."""
        closure = inspect.signature(self.optimizer.step).parameters.get("closure")
        return closure is not None and closure.default is inspect.Parameter.empty

    def update_by_closure(self, passes: Callable[[], None]) -> UpdateDone:
        """Let an optimizer such as LBFGS evaluate the loss as often as it wants.

        Args:
            passes: forward and backward of all of the step's micro-batches.
        """
        found: list[UpdateDone] = []

        def closure() -> float:
            self.executor.begin_step(self.executor.step)
            self.gradients.begin_step()
            passes()
            totals = self.gradients.take()
            norm, factor = self.prepare(totals)
            self._multiply(factor)
            loss = totals.loss_sum / totals.divisor
            stop = totals.num_stop_requests > 0
            found.append(UpdateDone(loss, totals.num_targets, norm, False, stop))
            return loss

        with self.updating():
            self.executor.run("update", "update", lambda: self.optimizer.step(closure))
        self._forget_gradients()
        return replace(found[0], stop=any(done.stop for done in found))

    def prepare(self, totals: Totals) -> tuple[float | None, float]:
        """The gradients' norm, if needed, and what they are to be multiplied by."""
        if not math.isfinite(totals.loss_sum) and self.scale is None:
            self._refuse(totals)
        factor = self.nominal / totals.divisor
        if self.scale is not None:
            factor /= self.scale.value
        self.nominal = totals.divisor
        norm = self._norm(factor) if self.options.needs_norm else None
        if norm is not None and self.clip_norm is not None and math.isfinite(norm):
            factor *= min(1.0, self.clip_norm / (norm + 1e-6))
        return norm, factor

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of every node that fires from now on."""
        self.observer = self.executor.observer = observer

    def settle(self) -> None:
        """Have every parameter up to date, also outside a forward."""
        if self.trains:
            self.executor.wait_queue("params")

    def free(self) -> None:
        """After an evaluation: let go of parameters that were gathered for it."""
        self.hooks.free()

    def home(self, name: str) -> tuple[Shape, Layout]:
        """A parameter's global shape, and where what the optimizer updates is."""
        layout = along(self.mesh, self.options.axis, Split(0))
        return self.program.tensors[name].shape, layout

    @property
    def reads(self) -> Reads | None:
        """Who watches the reading of parameters; None where all are always whole."""
        return Reads(self.hooks, self.owners) if self.splits else None

    def _settle_unused(self) -> None:
        """Have boxings done that no block waited for, before parts change again.

        Either their blocks were left out in this step, or the model uses parameters of
        a block without calling it: then all is awaited at each step's beginning.
        """
        if not self.hooks.updated:
            return
        self.settle()
        uncalled = [b for b in self.blocks if block_name(b) not in self.hooks.called]
        used = self.gradients.used
        if any(not used.isdisjoint(block.parameters) for block in uncalled):
            self.settles_first = True

    def _has_backward(self, loss: Tensor, num_targets: float) -> bool:
        """Whether there is a graph; without targets a constant loss will often do."""
        if loss.requires_grad:
            return True
        others_wait = self.stored or self.options.batch_norms
        if num_targets or (others_wait and self.wire.num_ranks > 1):
            raise ValueError(
                f"the loss of this part ({num_targets:g} targets) depends on no "
                "parameter that trains; for a part without targets return "
                "(0 * model(x).sum(), 0), since other ranks wait in its backward"
            )
        return False

    def _norm(self, factor: float) -> float:
        rank = self.wire.rank
        first = self.mesh.coordinate(rank)[self.mesh.axis_index(self.options.axis)] == 0
        mine = [
            p.grad
            for p in self.parts.values()
            if p.grad is not None and (first or p.dim() or not self.splits)
        ]
        squares = sum(float(n) ** 2 for n in norms(mine)) if mine else 0.0
        if self.splits:
            self.norm_sum.fill_(squares)
            self.executor.submit(f"{NORM}.box")
            self.executor.wait(f"{NORM}.box")
            squares = float(self.norm_sum)
        return math.sqrt(squares) * factor if squares >= 0 else squares

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return next(iter(self.parts.values())).device

    @property
    def splits(self) -> bool:
        """Whether the optimizer works on parts."""
        return self.options.splits_updates

    def _multiply(self, factor: float) -> None:
        grads = [p.grad for p in self.parts.values() if p.grad is not None]
        if factor != 1.0 and grads:
            multiply(grads, factor)

    def _forget_gradients(self) -> None:
        for name, parameter in self.gradients.parameters.items():
            parameter.grad = None
            self.parts[name].grad = None

    def _refuse(self, totals: Totals) -> None:
        values = {f"parameter {n!r}, so before": p for n, p in self.parts.items()}
        grads = {f"the gradient of {n!r}": p.grad for n, p in self.parts.items()}
        where = next(
            (
                place
                for place, tensor in (*values.items(), *grads.items())
                if tensor is not None and not bool(tensor.isfinite().all())
            ),
            "the loss only",
        )
        mean = totals.loss_sum / totals.divisor
        raise NonFiniteLoss(
            f"step {self.executor.step}: the loss is {mean:g}; "
            f"a number that is not finite was first seen in {where}."
            " This step changed no parameter and the last checkpoint is kept: lower "
            "the learning rate, clip gradients (clip_norm=1.0) or look at its data"
        )


def start_training(
    name: str,
    model: nn.Module,
    optimizer: Optimizer,
    wire: Wire,
    mesh: Mesh,
    *,
    options: DataParallel,
    clip_norm: float | None = None,
    scale: LossScale | None = None,
    shapes: Mapping[str, torch.Size] | None = None,
) -> Training:
    """Place a model's parameters and hook it; afterwards it trains on all ranks.

    Args:
        name: of the job.
        model: a plain module; at ZeRO level 3 its parameters become parts.
        optimizer: made over the model's parameters; repointed to parts.
        options: level and sizes; `whole_updates` if the optimizer is not element-wise.
        clip_norm: clip gradients to this global norm.
        scale: the loss scale (fp16).
        shapes: of the whole parameters, where the model's are already parts.
    """
    blocks = find_blocks(model)
    named = dict(model.named_parameters())
    parts: dict[str, nn.Parameter] = dict(named)
    stored: dict[str, StoredBlock] = {}
    if shapes is not None:
        parts = {n: _part(p) if shapes[n] else p for n, p in named.items()}
        repoint(optimizer, {named[n]: parts[n] for n in named})
    elif options.splits_updates:
        layout = along(mesh, options.axis, Split(0))
        parts = cut_parts(
            named, layout, wire.rank, own_storage=options.splits_parameters
        )
        repoint(optimizer, {named[n]: parts[n] for n in named})
    if options.splits_parameters:
        whole = shapes or {n: p.shape for n, p in named.items()}
        stored = stored_blocks(model, blocks, parts, whole)
    training = Training(
        name,
        model,
        optimizer,
        wire,
        mesh,
        options,
        clip_norm,
        scale,
        blocks,
        parts,
        stored,
    )
    optimizer.register_step_pre_hook(lambda *_: _check_step(training))
    training.trains = tuple(p.requires_grad for p in model.parameters())
    training.owners = {id(named[n]): b for b in blocks for n in b.parameters}
    _assemble(training)
    return training


def _part(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)


def _assemble(training: Training) -> None:
    """Build the program for the parameters that train now, and bind it."""
    training.program = _program(training)
    executor = Executor(
        training.program, training.wire, training.ledger, training.observer
    )
    parameters = dict(training.model.named_parameters())
    trainable = {n: p for n, p in parameters.items() if p.requires_grad}
    for name, parameter in parameters.items():
        training.parts[name].requires_grad_(parameter.requires_grad)
    training.executor = executor
    training.gradients = collect_gradients(
        training.program,
        executor,
        trainable,
        training.parts,
        keeps_parts=training.options.level >= 2 and training.splits,
    )
    for name, parameter in trainable.items():
        if name not in training.hooked:
            training.hooked.add(name)
            untyped: Any = parameter
            untyped.register_post_accumulate_grad_hook(_hook(training, name))
    updated: dict[str, list[str]] = {}
    if training.stored:
        for item in training.stored.values():
            bind_gathers(training.program, executor, item)
    elif training.splits:
        updated = bind_updated(training.program, executor, parameters, training.parts)
    if training.splits and training.options.needs_norm:
        dtype = training.program.tensors[NORM].dtype
        device = next(iter(training.parts.values())).device
        training.norm_sum = torch.zeros(1, dtype=dtype, device=device)
        flat = Binding(list, in_place, lambda: training.norm_sum)
        executor.bind(f"{NORM}.box", flat)
    first = not hasattr(training, "hooks")
    if first:
        training.hooks = BlockHooks(executor, training.blocks, training.stored)
        install(training.model, training.hooks)
    training.hooks.executor = executor
    training.hooks.updated = updated


def _check_step(training: Training) -> None:
    if not training.may_step:
        raise ValueError(
            "optimizer.step() on this rank's own gradients would let the ranks drift "
            "apart; call job.update() in its place, and job.backward(loss) before it"
        )


def _hook(training: Training, name: str) -> Callable[[nn.Parameter], None]:
    def made(parameter: nn.Parameter) -> None:
        training.gradients.made(name, parameter)

    return made


def _program(training: Training) -> Program:
    specs = [
        ParameterSpec(name, _shape(training, name, p), p.dtype, p.requires_grad)
        for name, p in training.model.named_parameters()
    ]
    return build_program(
        training.name,
        training.mesh,
        specs,
        training.blocks,
        options=training.options,
        cluster=training.wire.cluster,
    )


def _shape(training: Training, name: str, parameter: nn.Parameter) -> tuple[int, ...]:
    """The global shape, also of a parameter of which only a part is stored."""
    for item in training.stored.values():
        if name in item.shapes:
            return tuple(item.shapes[name])
    return tuple(parameter.shape)
