"""A plan draws the random numbers of one device, however an operator is divided."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from placet.placement.mesh import Mesh
from placet.program.capture import capture, state_tensors
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.run import planned_random
from placet.run.planned_random import runs
from testing.planned import RankResult, assert_parts, random_division, run_rank
from testing.ranks import run_threads


class Noisy(nn.Module):
    """Dropout of 2-d and 3-d values, and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = nn.functional.dropout(self.first(x), 0.4)
        made = made + 0.1 * torch.randn_like(made)
        return nn.functional.dropout(self.last(made), 0.2)


def _loss(model: nn.Module, batch: Tensor) -> Tensor:
    made = model(batch)
    return cast(Tensor, (made * made).sum() / made.numel())


@pytest.fixture
def keys_by_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Threads share torch's generator, which ranks do not: each counts for itself."""
    drawn: Counter[int] = Counter()

    def op_key() -> int:
        drawn[threading.get_ident()] += 1
        return drawn[threading.get_ident()]

    monkeypatch.setattr(planned_random, "op_key", op_key)
    return drawn.clear


def _run(
    graph: Graph, division: Division, states: dict[str, Tensor], batch: Tensor
) -> list[RankResult]:
    made = refine(graph, division, name="noisy")
    ranks = division.mesh.num_ranks
    return run_threads(ranks, run_rank, graph, division, made, states, [batch])


@pytest.mark.parametrize("mesh", ["a=2", "a=3", "a=2, b=2"])
@pytest.mark.parametrize("shape", [(7, 6), (3, 4, 6)])
def test_ranks_draw_what_one_device_draws(
    mesh: str, shape: tuple[int, ...], keys_by_thread: Callable[[], None]
) -> None:
    torch.manual_seed(0)
    model, batch = Noisy().double(), torch.randn(shape).double()
    captured = capture(model, batch, _loss)
    states = {n: t.clone() for n, t in state_tensors(model, captured.graph).items()}
    graph = normalise(captured.graph, 2)
    assert graph.loss is not None
    (whole,) = _run(graph, random_division(graph, Mesh("a=1"), 0), states, batch)
    want = {graph.loss: whole.loss}
    want |= {s.new: whole.news[s.name] for s in graph.states if s.new}
    for seed in range(3):
        keys_by_thread()
        division = random_division(graph, Mesh(mesh), seed)
        for rank, result in enumerate(_run(graph, division, states, batch)):
            assert_parts(graph, division, want, result, rank, atol=1e-9)


def test_other_keys_draw_other_numbers(keys_by_thread: Callable[[], None]) -> None:
    del keys_by_thread
    torch.manual_seed(0)
    model, batch = Noisy().double(), torch.randn(7, 6).double()
    graph = normalise(capture(model, batch, _loss).graph, 2)
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    division = random_division(graph, Mesh("a=1"), 0)
    made = refine(graph, division, name="noisy")

    def twice(wire: object) -> tuple[float, float]:
        pair = [run_rank(wire, graph, division, made, states, [batch]) for _ in "12"]  # type: ignore[arg-type]
        return float(pair[0].loss), float(pair[1].loss)

    ((first, second),) = run_threads(1, twice)
    assert first != second


@pytest.mark.parametrize("box", [((1, 3), (0, 4), (2, 5)), ((0, 2), (1, 2), (0, 5))])
def test_runs_are_the_row_major_indices_of_a_box(
    box: tuple[tuple[int, int], ...],
) -> None:
    shape = (3, 4, 5)
    whole = torch.arange(60).view(shape)
    want = whole[tuple(slice(*side) for side in box)].flatten().tolist()
    found = [i for first, n in runs(box, shape) for i in range(first, first + n)]
    assert found == want


def test_empty_box_has_no_runs() -> None:
    assert list(runs(((0, 3), (2, 2)), (3, 4))) == []
