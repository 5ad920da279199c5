"""Small divided graphs, whose programs are kept in tests/plans."""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.program.capture import capture
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.program.refine import Refined, refine
from testing.divisions import Guide, guided_division

DATA: Guide = {"batch": S(0)}
"""Of an axis that splits rows."""


def squares(model: nn.Module, batch: Any) -> Tensor:
    """The mean square of what a model makes of the batch less the batch itself."""
    difference = model(batch) - batch
    return cast(Tensor, (difference * difference).sum() / difference.numel())


@cache
def perceptron_graph(num_ranks: int, width: int = 8, rows: int = 16) -> Graph:
    """Three square layers."""
    with torch.device("meta"):
        layers = [nn.Linear(width, width) for _ in range(3)]
        model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        batch = torch.empty(rows, width)
    return normalise(capture(model, batch, squares).graph, num_ranks)


@cache
def normed_graph(num_ranks: int) -> Graph:
    """A norm, whose weight both phases read, and a layer."""
    with torch.device("meta"):
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
        batch = torch.empty(16, 8)
    return normalise(capture(model, batch, squares).graph, num_ranks)


def at_home(graph: Graph, mesh: Mesh) -> dict[str, Layout]:
    """Every parameter cut along its first dim over all axes."""
    cut = Layout(mesh, [S(0)] * len(mesh.axes))
    return {s.name: cut for s in graph.states if s.is_parameter}


def data_parallel(num_ranks: int = 2) -> tuple[Graph, Division]:
    """Rows are split, parameters on every rank."""
    graph = perceptron_graph(num_ranks)
    return graph, guided_division(graph, Mesh(f"data={num_ranks}"), [DATA])


def states_at_home(num_ranks: int = 2) -> tuple[Graph, Division]:
    """Rows are split, parameters too, and gathered."""
    graph, mesh = perceptron_graph(num_ranks), Mesh(f"data={num_ranks}")
    return graph, guided_division(graph, mesh, [DATA], at_home(graph, mesh))


def grid() -> tuple[Graph, Division]:
    """Rows along one axis, two layers along the other: by columns, then by rows."""
    graph = perceptron_graph(4)
    guide: Guide = {r"0\.": S(0), r"2\.weight": S(1)}
    return graph, guided_division(graph, Mesh("data=2, model=2"), [DATA, guide])


def refined(case: tuple[Graph, Division], **options: Any) -> Refined:
    """The program of a case."""
    return refine(*case, name="three layers", **options)


def printed(case: tuple[Graph, Division]) -> str:
    """The program of a case as text."""
    return f"{refined(case).program}\n"
