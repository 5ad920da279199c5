"""The fullest rank is among the few that are walked."""

import pytest

from placet.placement.mesh import Mesh
from placet.program.capture import capture
from placet.program.fullest import fullest_ranks
from placet.program.liveness import peak_bytes
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from testing.models.zoo import TINY
from testing.planned import random_division


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("MLP", "a=5"),
        pytest.param("DLRM", "a=2, b=3", marks=pytest.mark.prove),
        *(
            pytest.param(name, mesh, marks=pytest.mark.prove)
            for name in ("MLP", "DLRM", "GPT", "LLaMA", "ResNet")
            for mesh in ("a=3", "a=5", "a=2, b=2", "a=4, b=2")
        ),
    ],
)
def test_no_rank_holds_more(name: str, mesh: str) -> None:
    example = TINY[name]
    captured = capture(example.model_fn(), example.batch_fn(), example.loss)
    graph = normalise(captured.graph, Mesh(mesh).num_ranks)
    for seed in range(2):
        division = random_division(graph, Mesh(mesh), seed)
        refined = refine(graph, division, name="test")
        peaks = {
            rank: peak_bytes(graph, division, refined, rank).num_bytes
            for rank in division.mesh.ranks
        }
        few = fullest_ranks(graph, division, refined)
        assert max(peaks[rank] for rank in few) >= 0.99 * max(peaks.values()), peaks
