"""What experts plan by hand: expressible by pins, priced by its formula, never better.

Prices are exact: what formulas leave out are sums of single numbers.
"""

import pytest
import torch

from placet.placement.cluster import Cluster
from placet.planner.plan import Plan
from placet.planner.planning import plan
from placet.program.capture import capture
from placet.program.normalise.normalise import normalise
from testing.experts import EXPERTS, SCALAR_BYTES, Expert

SEARCH_SECONDS = 10.0
QUICK = ("Megatron", "one weird trick")


def _planned(expert: Expert, *, pinned: bool) -> Plan:
    with torch.device("meta"):
        model, batch = expert.example.model_fn(), expert.example.batch_fn()
    loss = expert.example.loss
    num_ranks = expert.mesh.num_ranks
    graph = normalise(capture(model, batch, loss).graph, num_ranks)
    return plan(
        model,
        batch,
        loss,
        cluster=Cluster.here(num_ranks),
        mesh=expert.mesh,
        objective="bytes",
        pins=expert.pins(graph) if pinned else (),
        time_limit_seconds=SEARCH_SECONDS,
    )


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(x, marks=pytest.mark.prove) for x in EXPERTS if x not in QUICK),
    ],
)
def test_expert_is_priced_by_its_formula(name: str) -> None:
    expert = EXPERTS[name]
    found = _planned(expert, pinned=True)
    free = _planned(expert, pinned=False)
    assert free.cost <= found.cost * (1 + 1e-9)
    assert free.bound <= found.cost * (1 + 1e-9)
    if expert.received_bytes is not None:
        exact = expert.received_bytes
        assert exact - 1 <= found.cost <= exact + SCALAR_BYTES
