"""Two lanes: what overlaps, what waits, and bounds that hold for any step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet.cost.overlap import Compute, Event, Submit, Wait, predict


def test_a_boxing_behind_enough_work_is_free():
    found = predict([Submit("g2", 2.0), Compute(3.0), Wait("g2"), Compute(1.0)])
    assert (found.seconds, found.waited_seconds) == (4.0, 0.0)


def test_a_boxing_read_at_once_is_not():
    found = predict([Compute(1.0), Submit("x", 2.0), Wait("x"), Compute(1.0)])
    assert (found.seconds, found.waited_seconds) == (4.0, 2.0)


def test_gradients_share_the_links_in_the_order_of_the_backward():
    backward: list[Event] = []
    for layer in (3, 2, 1):
        backward += [Compute(1.0), Submit(f"g{layer}", 2.0)]
    found = predict([*backward, Wait("g1")])
    # Submitted at 1, 2, 3; the links work from 1 to 7.
    assert found.seconds == 7.0
    assert (found.compute_seconds, found.link_seconds) == (3.0, 6.0)


def test_what_nobody_waits_for_still_ends_within_the_step():
    assert predict([Compute(1.0), Submit("g", 5.0)]).seconds == 6.0


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=9)
)
def test_a_step_is_between_the_longer_lane_and_both_lanes(
    layers: list[tuple[int, int, bool]],
):
    events: list[Event] = []
    for i, (work, moved, waits) in enumerate(layers):
        events += [Compute(work), Submit(f"g{i}", moved)]
        events += [Wait(f"g{i}")] if waits else []
    found = predict(events)
    lanes = found.compute_seconds, found.link_seconds
    assert max(lanes) <= found.seconds <= sum(lanes)
    without = predict([e for e in events if not isinstance(e, Wait)])
    assert without.seconds <= found.seconds


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="'g' is waited for, never submitted"):
        predict([Wait("g")])
    with pytest.raises(ValueError, match="'g' is submitted twice"):
        predict([Submit("g", 1.0), Submit("g", 1.0)])


def test_a_more_urgent_boxing_overtakes():
    bulk, urgent = Submit("g", 10.0), Submit("x", 1.0, priority=2)
    found = predict([bulk, Compute(2.0), urgent, Wait("x"), Compute(1.0)])
    # The links leave g after 2 s, are done with x at 3, and end g at 11.
    assert found.seconds == 11.0
    assert found.waited_seconds == 8.0
    waiting = predict([bulk, Compute(2.0), urgent, Wait("x"), Compute(9.0)])
    assert waiting.seconds == 12.0


def test_latencies_of_boxings_under_way_overlap():
    both = [Submit(key, 1.0, latency_seconds=5.0) for key in ("a", "b")]
    found = predict([*both, Wait("a"), Wait("b")])
    assert (found.seconds, found.link_seconds) == (7.0, 2.0)
    apart = predict([both[0], Wait("a"), both[1], Wait("b")])
    assert apart.seconds == 12.0
