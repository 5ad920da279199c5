"""The models and plans of bench/plan_honesty.py: good ones, and ones drawn at random.

    experts    data parallel; its weights stored in parts; columns and rows
    planner    the plan of least seconds
    redrawn    any of these, with the signatures of some operators and the homes of
               some parameters drawn anew                              -> redrawn
    random     all of them drawn

Models are so small that slow links decide what a step takes.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from placet.boxing.path import mean_bytes
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, S
from placet.planner.choices import layout_of
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.route import route
from testing.divisions import Guide, gathered_again, guided_division
from testing.models.example import Example
from testing.models.language import Gpt
from testing.models.vision import Vgg
from testing.models.zoo import images, text, vectors
from testing.planned import random_division

SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Of what is drawn anew."""


def _convolutions() -> nn.Module:
    return Vgg((1, 1), width=16, image=16, hidden=896, num_classes=64)


def _gpt() -> nn.Module:
    return Gpt(width=192, num_layers=2, num_heads=4, vocabulary=512, length=32)


MODELS: Mapping[str, Example] = {
    example.name: example
    for example in (
        vectors("MLP", (512, 768, 768, 256), batch=256),
        images("convolutions", _convolutions, batch=128, side=16, num_classes=64),
        text("GPT", _gpt, batch=16, length=32, vocabulary=512),
    )
}

COLUMNS_AND_ROWS: Mapping[str, Guide] = {
    "MLP": {r"^[04]\.(weight|bias)": S(0), r"^2\.weight": S(1)},
    "convolutions": {
        r"classifier\.[06]\.(weight|bias)": S(0),
        r"classifier\.3\.weight": S(1),
    },
    "GPT": {
        r"(query|key|value|up)\.(weight|bias)": S(0),
        r"(out|down)\.weight": S(1),
    },
}
"""Megatron's, by model."""

DATA: Guide = {"batch": S(0)}


@dataclass(frozen=True)
class Named:
    """A division, what people call it, and whether it is drawn at random."""

    name: str
    division: Division
    is_drawn: bool = False


def experts(model: str, graph: Graph) -> list[Named]:
    """What experts would write, on 4 ranks."""
    line, grid = Mesh("a=4"), Mesh("a=2, b=2")
    homes = {s.name: _cut(graph, s.tensor, line) for s in graph.states}
    stored = gathered_again(graph, guided_division(graph, line, [DATA], homes))
    rows = COLUMNS_AND_ROWS[model]
    return [
        Named("data parallel", guided_division(graph, line, [DATA])),
        Named("weights in parts", stored),
        Named("columns and rows", guided_division(graph, line, [rows])),
        Named("both, 2 x 2", guided_division(graph, grid, [DATA, rows])),
    ]


def _cut(graph: Graph, tensor: str, mesh: Mesh) -> Layout:
    """A state's parts along its first dim, where every rank gets one."""
    shape = graph.tensors[tensor].shape
    cut = layout_of(mesh, (S(0),), shape) if shape else None
    whole = layout_of(mesh, (B,), shape)
    assert whole is not None
    return cut or whole


def redrawn(graph: Graph, near: Division, share: float, seed: int) -> Division:
    """A division with a share of its signatures and homes drawn anew.

    Args:
        near: what the rest is taken from.
        share: of operators and of states, from 0 to 1.
    """
    other = random_division(graph, near.mesh, seed)
    draw = random.Random(seed)
    signatures = {
        name: other.signatures[name] if draw.random() < share else signature
        for name, signature in near.signatures.items()
    }
    homes = {
        name: other.homes[name] if draw.random() < share else home
        for name, home in near.homes.items()
    }
    return route(graph, Division(near.mesh, signatures, homes), mean_bytes)


def drawn(
    graph: Graph, good: Sequence[Named], number: int, seed: int
) -> Iterator[Named]:
    """So many plans at random: some near good ones, the last ones near none.

    Args:
        good: that most are drawn near of.
    """
    for i in range(number):
        share = (*SHARES, 1.0)[i % (len(SHARES) + 1)]
        base = good[(i + seed) % len(good)]
        if share < 1:
            made = redrawn(graph, base.division, share, seed + i)
            yield Named(f"{base.name}, {share:.0%} redrawn", made, True)
        else:
            mesh = Mesh("a=4") if i % 2 else Mesh("a=2, b=2")
            made = random_division(graph, mesh, seed + i)
            yield Named(f"random on {mesh!r}", made, True)
