"""Training by a plan: the running form of a divided graph, for a job.

    begin(step)       which parameters train
    step(batch)       forward and backward by the plan's program, then the optimizer on
                      this rank's parts; stop requests are summed meanwhile
    measure(batch)    what a function of model and batch returns, without backward
    settle()          the model's own parameters whole and up to date; the next step
                      frees them, see `placet.run.planned_state`

Parts replace parameters in the optimizer. A part that is the whole is the model's own
parameter. Of the gradients' norm each element counts once: a rank counts its part if it
is the first of every axis along which the part is repeated.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from placet.boxing.ledger import Ledger
from placet.errors import NonFiniteLoss, WireError
from placet.placement.layout import Layout, Shape, replicated
from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, P
from placet.program.capture import Captured
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.node import Boxing, Compute, TensorSpec
from placet.program.program import Program
from placet.program.refine import refine
from placet.run.events import Observer, ignore
from placet.run.executor import Executor
from placet.run.keyed_random import reseed
from placet.run.planned import PlannedStep, StepResult
from placet.run.planned_state import (
    Wholes,
    is_whole,
    wholes_of,
)
from placet.run.training import UpdateDone
from placet.torch_private.foreach import multiply, norms
from placet.torch_private.pytree import flatten
from placet.wire.interface import Wire

TOTALS = "totals"
"""Stop requests and, if it is asked for, the sum of the gradients' squares."""


@dataclass(frozen=True)
class Divided:
    """A captured step, with backward or without, and how it is divided.

    Args:
        num_targets: that the loss is the mean of, where the graph does not count them.
    """

    captured: Captured
    graph: Graph
    division: Division
    num_targets: float | None = None


UNREADABLE = (
    "(parameters that the plan stores in parts read NaN until job.training.settle() is "
    "called on all ranks)"
)

Divides = Callable[[Any], Divided]
"""A batch -> the division of its step; called once for each kind of batch."""


@dataclass(frozen=True)
class _Kind:
    """The step of one kind of batch, ready to run."""

    divided: Divided
    step: PlannedStep
    program: Program


@dataclass
class PlannedTraining:
    """Trains a model by a plan; see the module.

    Args:
        parts: what the optimizer updates, by name.
        buffers: this rank's parts of them, by name.
        divide: gives the division for a further kind of batch.
        shapes: of the whole parameters and buffers.
        homes: where each of them is stored.
        compile: have Inductor compile the segments.
    """

    name: str
    model: nn.Module
    optimizer: Optimizer
    wire: Wire
    mesh: Mesh
    divide: Divides
    parts: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    shapes: dict[str, Shape]
    homes: dict[str, Layout]
    clip_norm: float | None = None
    seed: int = 0
    compile: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    observer: Observer = ignore
    nominal: float = 0.0
    may_step: bool = False
    stored: dict[str, Any] = field(default_factory=dict)
    scale: None = None
    reads: None = None
    needs_closure: bool = False
    program: Program = field(init=False)
    executor: Executor = field(init=False)
    wholes: Wholes = field(init=False)
    _kinds: dict[object, _Kind] = field(default_factory=dict)
    _at: int = 0

    def __post_init__(self) -> None:
        mine: dict[str, Tensor] = {**self.parts, **self.buffers}
        self.wholes = wholes_of(self.model, mine, self.homes, self.wire, self.ledger)

    def begin(self, step: int) -> None:
        """A step begins; parameters may have been frozen or thawed since the last."""
        self._at = step
        for name, parameter in self.model.named_parameters():
            self.parts[name].requires_grad_(parameter.requires_grad)

    def step(self, batch: Any, num_rows: int, *, stop: bool = False) -> UpdateDone:
        """Train on a global batch.

        Args:
            batch: on this rank's device; whole and the same on all ranks.
            num_rows: counted where the loss function does not count targets.
            stop: ask all ranks to stop after this step.

        Raises:
            NonFiniteLoss: the loss or a gradient is not finite; no parameter has been
                changed.

        After an error that all ranks meet the model's parameters are whole.
        """
        with self.rescuing():
            return self._step(batch, num_rows, stop)

    def _step(self, batch: Any, num_rows: int, stop: bool) -> UpdateDone:
        kind = self.prepare(batch)
        self.wholes.free()
        reseed(self.seed, self._at)
        asked = self._totals([float(stop)]) if self.clip_norm is None else None
        result = self._run(kind, batch)
        num_targets = kind.divided.num_targets or float(num_rows)
        if result.count is not None:
            num_targets = float(result.count)
        assert result.loss is not None
        loss = float(result.loss) if num_targets else 0.0
        for name, part in self.parts.items():
            trains = part.requires_grad and num_targets > 0
            part.grad = result.news.get(name) if trains else None
        if asked is None:
            asked = self._totals([float(stop), self._squares()])
        stops, *squares = asked().tolist()
        norm = math.sqrt(squares[0]) if squares else None
        if not math.isfinite(loss) or not math.isfinite(norm or 0.0):
            self._refuse(loss)
        if norm is not None and self.clip_norm is not None:
            self._clip(norm)
        with self.updating(), torch.no_grad():
            self.executor.run("update", "update", self.optimizer.step)
            for name, buffer in self.buffers.items():
                if name in result.news:
                    buffer.copy_(result.news[name])
        for part in self.parts.values():
            part.grad = None
        return UpdateDone(loss, num_targets, norm, False, stops > 0)

    def _run(self, kind: _Kind, batch: Any) -> StepResult:
        """Run a kind's program on what this rank has."""
        captured = kind.divided.captured
        states = {
            **{n: p.detach() for n, p in self.parts.items()},
            **self.buffers,
            **{n: t.detach().to(self.device) for n, t in captured.foreign.items()},
        }
        return kind.step(states, captured.flatten(batch), step=self._at)

    def measure(self, batch: Any, divide: Divides, name: object) -> Any:
        """What a function of model and batch returns, equal on all ranks.

        Args:
            batch: global, as for `step`.
            divide: gives the division of a step without backward.
            name: of the function; equal for the same one.

        Raises:
            CaptureError: the function cannot be captured.
        """
        kind = self._kind((name, self._key(batch)), batch, divide)
        captured = kind.divided.captured
        result = self._run(kind, batch)
        found = (result.loss, result.count, *result.extras)
        return captured.returned([t for t in found if t is not None])

    def prepare(self, batch: Any) -> _Kind:
        """Have the step for this kind of batch; made at its first use."""
        kind = self._kind(self._key(batch), batch, self.divide)
        self.program, self.executor = kind.program, kind.step.executor
        return kind

    def _kind(self, key: object, batch: Any, divide: Divides) -> _Kind:
        if key not in self._kinds:
            self.settle()  # a capture looks at the model's own parameters
            self._kinds[key] = self.add(divide(batch))
        return self._kinds[key]

    def start(self, batch: Any, divided: Divided) -> None:
        """Have the step of a first batch, whose division is known."""
        self._kinds[self._key(batch)] = self.add(divided)
        self.prepare(batch)

    def add(self, divided: Divided) -> _Kind:
        """Make a division ready to run on this rank."""
        graph, division = divided.graph, divided.division
        cluster = self.wire.cluster
        refined = refine(graph, division, name=self.name, cluster=cluster)
        step = PlannedStep(
            graph,
            division,
            refined,
            self.wire,
            self.ledger,
            self.observer,
            compile=self.compile,
        )
        if graph.loss is None:
            return _Kind(divided, step, refined.program)
        clips = self.clip_norm is not None
        return _Kind(divided, step, with_totals(refined.program, clips=clips))

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of every node that fires from now on."""
        self.observer = observer
        for kind in self._kinds.values():
            kind.step.executor.observer = observer

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return next(iter(self.parts.values())).device

    @property
    def splits(self) -> bool:
        """Whether the optimizer works on parts."""
        return any(not is_whole(self.homes[name]) for name in self.parts)

    def home(self, name: str) -> tuple[Shape, Layout]:
        """A parameter's global shape, and where its parts are."""
        return self.shapes[name], self.homes[name]

    @contextmanager
    def updating(self) -> Iterator[None]:
        """The optimizer may step; see `Training.updating`."""
        self.may_step = True
        try:
            yield
        finally:
            self.may_step = False

    def settle(self) -> None:
        """Have the model's own parameters and buffers whole and up to date.

        They stay so until the next step, which frees what is stored in parts.
        """
        self.wholes.settle(self._at)

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """Have the parameters whole after an error too, where all ranks meet it.

        See NOTE [Whole again after an error] in `placet.run.planned_state`.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, WireError) or not self.wholes.rescue(self._at):
                error.add_note(UNREADABLE)
            raise

    def cut_again(self) -> None:
        """Take the parts out of the model's own parameters, which were loaded."""
        self.wholes.cut_again()

    def free(self) -> None:
        """After an evaluation: the next step frees what it needed."""

    def _key(self, batch: Any) -> object:
        leaves, structure = flatten(batch)
        kinds = tuple(
            (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else repr(x)
            for x in leaves
        )
        trains = tuple(p.requires_grad for p in self.model.parameters())
        return str(structure), kinds, trains, self.model.training

    def _totals(self, values: Sequence[float]) -> Callable[[], Tensor]:
        """Begin to sum over ranks: stop requests, and the gradients' squares if asked.

        Without them it is known before the step, and travels beside it.
        """
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        src, dst = _summed(self.mesh), replicated(self.mesh)
        return self.executor.box_later(f"{TOTALS}.box", mine, src, dst)

    def _squares(self) -> float:
        """The sum of the squares of those gradients that this rank counts."""
        coordinate = self.mesh.coordinate(self.wire.rank)
        mine = []
        for name, part in self.parts.items():
            pairs = zip(coordinate, self.homes[name].placements, strict=True)
            first = all(i == 0 for i, p in pairs if isinstance(p, Broadcast))
            if first and part.grad is not None:
                mine.append(part.grad)
        return sum(float(n) ** 2 for n in norms(mine)) if mine else 0.0

    def _clip(self, norm: float) -> None:
        assert self.clip_norm is not None
        factor = min(1.0, self.clip_norm / (norm + 1e-6))
        grads = [p.grad for p in self.parts.values() if p.grad is not None]
        if factor != 1.0 and grads:
            multiply(grads, factor)

    def _refuse(self, loss: float) -> None:
        values = {f"parameter {n!r}, so before": p for n, p in self.parts.items()}
        grads = {f"the gradient of {n!r}": p.grad for n, p in self.parts.items()}
        where = next(
            (
                place
                for place, tensor in (*values.items(), *grads.items())
                if tensor is not None and not bool(tensor.isfinite().all())
            ),
            "the loss, or another rank's part",
        )
        self.settle()
        raise NonFiniteLoss(
            f"step {self._at}: the loss is {loss:g}; a number that is not finite was "
            f"first seen in {where}. This step changed no parameter and the last "
            "checkpoint is kept: lower the learning rate, clip gradients "
            "(clip_norm=1.0) or look at its data"
        )


def with_totals(program: Program, *, clips: bool) -> Program:
    """A step's program together with the boxing of its totals.

    Args:
        clips: the gradients' squares are among them, so it comes after all gradients;
            else it is the first to travel.
    """
    made, boxed, size = f"{TOTALS}", f"{TOTALS}.sum", 1 + clips
    src, dst = _summed(program.mesh), replicated(program.mesh)
    tensors = {
        **program.tensors,
        made: TensorSpec((size,), torch.float64, src),
        boxed: TensorSpec((size,), torch.float64, dst),
    }
    extra = (
        Compute(TOTALS, (), (made,)),
        Boxing(f"{TOTALS}.box", (made,), (boxed,), src, dst, queue=TOTALS),
    )
    at = len(program.nodes) - 1 if clips else 0
    nodes = (*program.nodes[:at], *extra, *program.nodes[at:])
    return replace(program, tensors=tensors, nodes=nodes)


def _summed(mesh: Mesh) -> Layout:
    return Layout(mesh, [P()] * len(mesh.axes))
