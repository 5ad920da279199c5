"""What each pass makes of the operators that it is for, and what it leaves alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placet.program.capture import capture, state_tensors
from placet.program.functions.batch_norm import (
    batch_norm_apply,
    batch_norm_grad_sums,
    batch_norm_gradient,
    batch_sums,
)
from placet.program.functions.linear import contract, linear
from placet.program.functions.loss import (
    cross_entropy_gradient,
    exp_sum,
    target_logit,
)
from placet.program.graph import Graph
from placet.program.interpret import interpret
from placet.program.normalise.batch_norm import split_batch_norm
from placet.program.normalise.clean import clean
from placet.program.normalise.cross_entropy import split_cross_entropy
from placet.program.normalise.unflatten import unflatten

aten = torch.ops.aten
F64 = torch.float64
X = (torch.arange(96.0, dtype=F64) * 7 % 19 / 9).view(4, 6, 4)
IMAGE = X.view(4, 4, 2, 3)
CLASSES = torch.tensor([[0, 3, -1, 2, 1, 4]] * 4)


def targets(graph: Graph) -> set[Any]:
    return {op.target for op in graph.ops}


def same(model: nn.Module, batch: Any, loss: Any, graph: Graph) -> None:
    """A graph gives the eager loss, gradients and buffers."""
    tensors = [t for t in batch if isinstance(t, Tensor)]
    before = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    found = interpret(graph, before, tensors)
    expected = loss(model, batch)
    expected.backward()
    after: dict[str, Any] = {n: p.grad for n, p in model.named_parameters()}
    after |= dict(model.named_buffers())
    assert graph.loss is not None
    torch.testing.assert_close(found[graph.loss], expected.detach())
    for state in graph.states:
        if state.new is not None:
            torch.testing.assert_close(found[state.new], after[state.name])


def squares(model: nn.Module, batch: Any) -> Tensor:
    made = model(batch[0])
    found: Tensor = (made * made.sin()).mean()
    return found


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"eps": 0.5}])
def test_batch_norm_in_steps(options: Any, momentum: float | None) -> None:
    norm = nn.BatchNorm2d(4, momentum=momentum, dtype=F64, **options)
    model = nn.Sequential(nn.Conv2d(4, 4, 1, dtype=F64), norm)
    graph = split_batch_norm(clean(capture(model, (IMAGE,), squares).graph))
    steps = {batch_sums, batch_norm_apply, batch_norm_grad_sums, batch_norm_gradient}
    assert steps <= targets(graph)
    assert not any("native_batch_norm" in str(t) for t in targets(graph))
    same(model, (IMAGE,), squares, graph)


def test_batch_norm_without_statistics_of_steps() -> None:
    norm = nn.BatchNorm2d(4, track_running_stats=False, dtype=F64)
    model = nn.Sequential(norm, nn.Conv2d(4, 2, 1, dtype=F64))
    graph = split_batch_norm(clean(capture(model, (IMAGE,), squares).graph))
    assert batch_sums in targets(graph)
    same(model, (IMAGE,), squares, graph)


def test_batch_norm_of_known_statistics_stays_whole() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4, dtype=F64), nn.Conv2d(4, 2, 1, dtype=F64))
    model[0].eval()
    before = clean(capture(model, (IMAGE,), squares).graph)
    graph = split_batch_norm(before)
    assert targets(graph) == targets(before)
    same(model, (IMAGE,), squares, graph)


def entropy(**options: Any) -> Any:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        scores = model(batch[0]).view(-1, 5)
        found = F.cross_entropy(scores, batch[1].view(-1), ignore_index=-1, **options)
        return found if found.dim() == 0 else found.mean()

    return loss


@pytest.mark.parametrize(
    ("options", "in_steps"),
    [
        ({}, True),
        ({"reduction": "sum"}, True),
        ({"reduction": "none"}, False),
        ({"label_smoothing": 0.1}, False),
        ({"weight": torch.arange(1.0, 6.0, dtype=F64)}, False),
    ],
)
def test_plain_cross_entropies_are_in_steps(options: Any, in_steps: bool) -> None:
    model, batch, loss = nn.Linear(4, 5, dtype=F64), (X, CLASSES), entropy(**options)
    captured = capture(model, batch, loss)
    graph = split_cross_entropy(clean(captured.graph))
    steps = {exp_sum, target_logit, cross_entropy_gradient}
    assert bool(steps & targets(graph)) == in_steps
    assert (aten.nll_loss_forward.default in targets(graph)) != in_steps
    if not captured.foreign:
        same(model, batch, loss, graph)


def test_a_cross_entropy_with_nothing_to_count_is_not_a_number() -> None:
    model, loss = nn.Linear(4, 5, dtype=F64), entropy()
    batch = (X, torch.full_like(CLASSES, -1))
    graph = split_cross_entropy(clean(capture(model, batch, loss).graph))
    found = interpret(graph, state_tensors(model, graph), batch)
    assert graph.loss is not None
    assert found[graph.loss].isnan()
    assert loss(model, batch).isnan()


class Layers(nn.Module):
    """Two layers and what stands between them, over (batch, sequence, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6, dtype=F64)
        self.down = nn.Linear(6, 3, bias=False, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(F.gelu(self.up(x)))
        return found


def test_products_have_all_leading_dims() -> None:
    model = Layers()
    before = clean(capture(model, (X,), squares).graph)
    graph = clean(unflatten(before))
    assert {linear, contract} <= targets(graph)
    assert not {aten.mm.default, aten.addmm.default} & targets(graph)
    products = [op for op in graph.ops if op.target is linear]
    shapes = [graph.tensors[op.inputs[0]].shape for op in products]
    assert all(shape[:2] == (4, 6) for shape in shapes)
    assert aten.view.default not in targets(graph)
    same(model, (X,), squares, graph)


def test_flat_rows_that_others_read_stay_flat_for_them() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        flat = model(batch[0]).view(24, 3)
        found: Tensor = (flat.cumsum(0) * flat).mean()
        return found

    model = Layers()
    graph = clean(unflatten(clean(capture(model, (X,), loss).graph)))
    assert aten.cumsum.default in targets(graph)
    assert aten.view.default in targets(graph)
    same(model, (X,), loss, graph)
