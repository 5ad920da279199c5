"""Folded lists and stepped names come back as they were."""

from hypothesis import given
from hypothesis import strategies as st

from placet.planner.folding import Namer, fold, unfold


@given(
    st.lists(st.sampled_from("abc"), max_size=8),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=6),
    st.integers(1, 9),
    st.lists(st.sampled_from("abc"), max_size=8),
)
def test_folding_loses_nothing(head: list, body: list, times: int, tail: list) -> None:
    items = head + body * times + tail
    assert unfold(fold(items)) == items


def test_repeats_are_written_once() -> None:
    items = [*"ab", *("x", "y", "z") * 40, "c"]
    assert len(fold(items)) < 10


@given(st.lists(st.from_regex(r"[a-z]{1,3}(_?[0-9]{1,4}){0,3}", fullmatch=True)))
def test_names_come_back(names: list[str]) -> None:
    writer, reader = Namer(), Namer()
    assert [reader.name(writer.step(name)) for name in names] == names
