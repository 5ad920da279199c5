"""A planned step on one rank beside the eager step: what running by a plan costs.

On one rank nothing is divided and nothing moves, so whatever is slower is ours: other
operators than eager's, copies, Python. Forward and backward, without an optimizer.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.harness import Options, Outcome, Side, measure, rows_of, run_bench
from bench.ratios import Row
from placet.placement.layout import replicated
from placet.placement.mesh import Mesh
from placet.program.capture import capture, state_tensors
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.program.signature import operator_of, replicated_signature
from placet.run.planned import PlannedStep
from placet.wire.twin import Twin
from testing.models.example import Example
from testing.models.language import Gpt
from testing.models.vision import ResNet
from testing.models.zoo import images, text, vectors

QUESTION = "What does a step by a plan cost beside the eager step (1 rank)?"
MOST = 1.05


def _gpt() -> nn.Module:
    return Gpt(width=128, num_layers=4, num_heads=4, vocabulary=256, length=128)


def _resnet() -> nn.Module:
    return ResNet((1, 1, 1), width=16, num_classes=10)


TASKS = (
    vectors("MLP", (1024, 1024, 1024, 1024, 100), batch=64),
    text("GPT", _gpt, batch=4, length=128, vocabulary=256),
    images("ResNet", _resnet, batch=8, side=64, num_classes=10),
)


@dataclass(frozen=True)
class Task:
    """A model, its batch, and both kinds of step."""

    eager: Callable[[], object]
    eager_again: Callable[[], object]
    planned: Callable[[], object]


def one_rank_step(graph: Graph) -> PlannedStep:
    """A step of which one rank does everything."""
    mesh = Mesh("a=1")
    picked = {
        op.name: (replicated_signature(operator_of(op, graph)),) for op in graph.ops
    }
    homes = dict.fromkeys((s.name for s in graph.states), replicated(mesh))
    division = Division(mesh, picked, homes)
    refined = refine(graph, division, name="one rank")
    return PlannedStep(graph, division, refined, Twin(1).wire(0))


def prepare(example: Example) -> Task:
    """Both steps on equal states and one batch; their losses must agree."""
    torch.manual_seed(0)
    model, twin = example.model_fn(), example.model_fn()
    twin.load_state_dict(model.state_dict())
    batch = example.batch_fn()
    captured = capture(model, batch, example.loss)
    graph = normalise(captured.graph, 1)
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    step, tensors = one_rank_step(graph), captured.flatten(batch)
    planned = _planned(step, states, tensors)
    _assert_same(example, model, batch, planned())
    return Task(_eager(example, model, batch), _eager(example, twin, batch), planned)


def _eager(example: Example, model: nn.Module, batch: Any) -> Callable[[], Tensor]:
    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = example.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return step


def _planned(
    step: PlannedStep, states: Mapping[str, Tensor], tensors: list[Tensor]
) -> Callable[[], Tensor]:
    kept: list[object] = []  # gradients live until the next step, as eager's do

    def run() -> Tensor:
        kept.clear()
        result = step(states, tensors)
        kept.append(result)
        assert result.loss is not None
        return result.loss

    return run


def _assert_same(example: Example, model: nn.Module, batch: Any, loss: Tensor) -> None:
    """The planned loss is the eager one's; buffers are left as they were."""
    before = {n: b.clone() for n, b in model.named_buffers()}
    with torch.no_grad():
        torch.testing.assert_close(loss, example.loss(model, batch))
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])


def collect(options: Options) -> Outcome:
    """Each model, on one thread."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for example in TASKS:
        task = prepare(example)
        found = measure(
            Side("planned", task.planned),
            Side("eager", task.eager),
            Side("eager again", task.eager_again),
            num_pairs=options.num_pairs,
            budget_seconds=options.budget_seconds / len(TASKS),
            num_warm_up=3,
        )
        rows += rows_of(found, example.name, most=MOST)
    return Outcome(tuple(rows))


if __name__ == "__main__":
    sys.exit(run_bench("plan_overhead", QUESTION, collect))
