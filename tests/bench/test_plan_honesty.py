"""The bench of predicted and measured steps: its plans, and how it reads its ranks."""

import pytest
import torch

from bench.plan_honesty import Compared, compared, row_of, target_rows
from bench.plan_honesty_plans import COLUMNS_AND_ROWS, MODELS, drawn, experts
from bench.plan_honesty_rank import Found, Ran
from placet.program.capture import capture
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from placet.program.signature import operator_of
from testing.planned import is_legal


def plan(predicted: float, *seconds: float) -> Compared:
    return Compared("MLP", "x", True, predicted, seconds, 2e7, 0.01)


def test_plans_in_the_right_order_and_near_their_times_meet_both_targets():
    plans = [plan(1.1, 1.0), plan(2.2, 2.0), plan(3.3, 3.0)]
    order, error = target_rows("all", plans)
    assert (order.ours, order.verdict) == (pytest.approx(0.0), "met")
    assert (error.ours, error.verdict) == (pytest.approx(0.1), "met")


def test_one_order_is_not_enough_and_near_is_not_enough():
    order, error = target_rows("all", [plan(2.0, 1.0), plan(4.0, 2.0), plan(6.0, 3.0)])
    assert (order.verdict, error.verdict) == ("met", "missed")
    order, error = target_rows("all", [plan(1.0, 1.1), plan(1.1, 1.0), plan(1.2, 0.9)])
    assert (order.verdict, error.verdict) == ("missed", "met")


def test_a_step_takes_as_long_as_the_slowest_rank_and_the_median_step():
    def rank(*seconds: float) -> Found:
        ran = Ran("x", False, 1.0, seconds, (0.1, 0.2, 0.3), (5, 6, 7))
        return Found((("network", 1e-4, 2.5e7),), "a machine", (ran,))

    (found,) = compared("MLP", [rank(1.0, 2.0, 9.0), rank(3.0, 1.0, 1.0)])
    assert found.seconds == (3.0, 2.0, 9.0)
    assert found.measured == 3.0
    assert (found.sent_bytes, found.computing) == (6, 0.2)
    assert found.error == pytest.approx(1 / 3 - 1)
    assert row_of(found).ratio.value == pytest.approx(1 / 3)


def test_the_links_share_is_what_the_busiest_card_could_send():
    assert plan(1.0, 1.0).share == pytest.approx(2e7 / 2.5e7)


def test_drawn_plans_are_plans_of_the_model_and_differ():
    example = MODELS["MLP"]
    with torch.device("meta"):
        model, batch = example.model_fn(), example.batch_fn()
        graph = normalise(capture(model, batch, example.loss).graph, 4)
    good = experts("MLP", graph)
    named = [*good, *drawn(graph, good, 12, seed=3)]
    assert len({one.name for one in named[:11]}) == 11
    assert sum(one.is_drawn for one in named) == 12
    received = set()
    for one in named:
        for op in graph.ops:
            picked = one.division.signatures[op.name]
            assert is_legal(operator_of(op, graph), one.division.mesh, picked)
        program = refine(graph, one.division, name="test").program
        received.add(sum(map(program.received_bytes, range(4))))
    assert len(received) >= 12


def test_every_model_has_columns_and_rows():
    assert COLUMNS_AND_ROWS.keys() == MODELS.keys()
