"""Whole training steps in processes: what the allocator gave beside what was predicted.

measured = parts + optimizer state + batch + the allocator's peak in a step
predicted = `peak_bytes` on the same rank, kernels' workspaces and all
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from placet.boxing.moves import Move
from placet.boxing.scratch import scratch_bytes
from placet.placement.layout import Layout, part_box, relative
from placet.placement.mesh import Mesh
from placet.planner.plan import Plan
from placet.planner.storage import storage_of
from placet.program.capture import capture, state_tensors
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.liveness import Kept, peak_bytes
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.run.planned import PlannedStep
from placet.torch_private.storages import allocator_peak
from placet.wire.interface import Future, Traffic, Wire
from testing.divisions import Guide, guided_division
from testing.models.example import Example
from testing.models.language import Gpt, Llama
from testing.models.vision import ResNet, Vgg, Vit
from testing.models.zoo import clicks, images, text, vectors
from testing.planned import random_division


class Again(nn.Module):
    """Blocks, each a region that the backward computes again."""

    def __init__(self, width: int, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(num_blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def _again() -> Example:
    def batch_fn() -> tuple[Tensor, Tensor]:
        return torch.randn(2048, 64), torch.randint(64, (2048,))

    plain = vectors("", (64, 64), batch=1)
    return Example("Again", partial(Again, 64, 4), batch_fn, plain.loss)


def _sized() -> Mapping[str, Example]:
    gpt = partial(Gpt, width=64, num_layers=2, num_heads=4, vocabulary=512, length=128)
    llama = partial(
        Llama,
        width=64,
        inner=160,
        num_layers=2,
        num_heads=4,
        num_groups=2,
        vocabulary=512,
    )
    vgg = partial(Vgg, (1, 1), width=16, image=48, hidden=64, num_classes=10)
    vit = partial(
        Vit, image=32, patch=4, width=64, num_heads=4, num_layers=2, num_classes=10
    )
    resnet = partial(ResNet, (1, 1), width=16, num_classes=10)
    return {
        "MLP": vectors("MLP", (256, 512, 256, 64), batch=512),
        "wide MLP": vectors("MLP", (512, 2048, 2048, 16), batch=16),
        "GPT": text("GPT", gpt, batch=8, length=128, vocabulary=512),
        "LLaMA": text("LLaMA", llama, batch=8, length=128, vocabulary=512),
        "VGG": images(
            "VGG", partial(vgg, norms=False), batch=12, side=48, num_classes=10
        ),
        "VGG, norms": images(
            "VGG", partial(vgg, norms=True), batch=12, side=48, num_classes=10
        ),
        "ResNet": images("ResNet", resnet, batch=12, side=64, num_classes=10),
        "ViT": images("ViT", vit, batch=16, side=32, num_classes=10),
        "DLRM": clicks(
            "DLRM", (20_000, 30_000, 50), batch=1024, width=32, num_dense=13, hidden=128
        ),
        "Again": _again(),
    }


SIZED = _sized()
"""Models whose tensors are large beside the small things that kernels take."""


@dataclass(frozen=True)
class Trial:
    """One step to be measured.

    Args:
        model: a name in `SIZED`.
        mesh: as for `Mesh`.
        plan: as JSON; or else
        seed: of a random division; or else the guides are followed, one per axis.
        optimizer: a class of torch.optim; "" for an evaluation.
    """

    model: str
    mesh: str
    plan: str | None = None
    seed: int | None = None
    guides: tuple[Guide, ...] = ()
    optimizer: str = "Adam"


@dataclass(frozen=True)
class Found:
    """A rank's peak in bytes, measured and predicted, and where it is predicted."""

    measured: int
    predicted: int
    where: str


def step_peak(wire: Wire, trial: Trial) -> Found:
    """Measure a step on this rank, after one that made the optimizer's state."""
    torch.manual_seed(0)
    example = SIZED[trial.model]
    model, batch = example.model_fn(), example.batch_fn()
    captured = capture(model, batch, example.loss, trains=bool(trial.optimizer))
    graph = normalise(captured.graph, wire.num_ranks)
    division = _division(graph, trial)
    refined = refine(graph, division, name="trial", cluster=wire.cluster)
    step = PlannedStep(graph, division, refined, _Seen(wire))
    parts = {
        name: _part(whole, division.homes[name], wire.rank)
        for name, whole in state_tensors(model, graph).items()
    }
    tensors = captured.flatten(batch)
    trained = {s.name for s in graph.states if s.is_parameter and s.new is not None}
    optimizer = None
    if trial.optimizer:
        make = getattr(torch.optim, trial.optimizer)
        optimizer = make([parts[name] for name in parts if name in trained], lr=1e-3)

    def train() -> None:
        news = step({n: p.detach() for n, p in parts.items()}, tensors).news
        for name in trained if optimizer is not None else ():
            parts[name].grad = news[name]
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    train()
    given = [*parts.values(), *tensors, *_tensors_of(optimizer)]
    measured = sum(tensor.nbytes for tensor in given) + allocator_peak(train)
    kept = Kept() if optimizer is None else storage_of(optimizer).kept
    peak = peak_bytes(graph, division, refined, wire.rank, kept=kept)
    return Found(measured, peak.num_bytes, peak.where)


class _Seen(Wire):
    """A wire whose own memory the allocator sees: the engine takes it elsewhere."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.rank, self.num_ranks = wire.rank, wire.num_ranks
        self.capabilities, self.cluster = wire.capabilities, wire.cluster

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> Future:
        scratch = torch.empty(scratch_bytes(move, self.rank), dtype=torch.uint8)
        future = self.wire.submit(move, payload, key=key, priority=priority, out=out)
        return _Until(future, scratch)

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        self.wire.prepare(groups)

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        return self.wire.exchange(value, key=key)

    def control_bytes(self) -> int:
        return self.wire.control_bytes()

    def close(self) -> None:
        self.wire.close()


class _Until(Future):
    """A move that takes memory until it is waited for."""

    def __init__(self, future: Future, scratch: Tensor) -> None:
        self.future, self.scratch = future, scratch

    def done(self) -> bool:
        return self.future.done()

    def wait(self) -> Tensor:
        found = self.future.wait()
        self.scratch = self.scratch.new_empty(0)
        return found

    def traffic(self) -> Traffic:
        return self.future.traffic()


def _division(graph: Graph, trial: Trial) -> Division:
    mesh = Mesh(trial.mesh)
    if trial.plan is not None:
        return Plan.from_json(trial.plan).division
    if trial.seed is not None:
        return random_division(graph, mesh, trial.seed)
    return guided_division(graph, mesh, trial.guides)


def _part(whole: Tensor, home: Layout, rank: int) -> nn.Parameter:
    shape = tuple(whole.shape)
    box = part_box(shape, home, rank)
    part = whole.detach()[relative(box, tuple((0, n) for n in shape))].clone()
    return nn.Parameter(part, requires_grad=part.is_floating_point())


def _tensors_of(optimizer: Optimizer | None) -> list[Tensor]:
    states = [] if optimizer is None else optimizer.state.values()
    return [t for state in states for t in state.values() if isinstance(t, Tensor)]
