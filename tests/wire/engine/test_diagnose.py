"""The cause of a wait is found, whatever else goes on; and said in words."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placet.boxing.moves import AllReduce
from placet.errors import PAGE, MoveMismatch, WireTimeout
from placet.wire.engine.calls import Call
from placet.wire.engine.causes import ranks_text
from placet.wire.engine.diagnose import (
    REPORT_BYTES,
    Explanation,
    PendingMove,
    Report,
    explain,
)
from placet.wire.engine.keys import full_text
from placet.wire.engine.waits import IN_TWO_WAYS, Called, Cause

TEXT = "AllReduce of 4 torch.float32"
AGE = 30.0
OLD = 1000.0


def pending(
    called: Called, *heard: int, text: str = TEXT, age: float = AGE
) -> PendingMove:
    return PendingMove(*called, text, age, heard)


def waits(rank: int, called: Called, *others: PendingMove) -> Report:
    """A rank whose program stands still for a move that it submitted."""
    return Report(rank, (*others, pending(called)), *called, ())


def computes(rank: int, *others: PendingMove, **fields) -> Report:
    return Report(rank, others, None, None, (), **fields)


def ask(
    called: Called, reports: dict[int, Report | None], rank=0, text=TEXT
) -> Explanation:
    return explain(
        key=called[0],
        group=called[1],
        move_text=text,
        seconds=AGE,
        my_rank=rank,
        reports=reports,
    )


A, B = ("a", (0, 1)), ("b", (0, 1))


def test_cycle_of_two_is_told_as_both_programs_see_it():
    said = ask(A, {0: waits(0, A), 1: replace(waits(1, B), finished=("z",))})
    assert said.cause == Cause.CYCLE
    assert said.kind is WireTimeout
    assert said.sentence == (
        "rank 0 waits for 'a' before it submits 'b'; "
        "rank 1 waits for 'b' before it submits 'a'"
    )
    assert said.text.splitlines() == [
        "rank 0: 'a' over ranks 0, 1 has not ended after 30 s",
        f"  it is {TEXT}",
        "  submitted by rank 0, not by rank 1",
        "  rank 1 waits for 'b' over ranks 0, 1 for 30 s; last finished 'z'",
        f"  likely cause: an application cycle: {said.sentence}",
        "  fix: submit all of these moves on every rank before the first wait, or "
        "wait for them in the same order; or, if rank 1 skipped 'a' or rank 0 skipped "
        "'b' (a branch such as `if rank == 0:`), make it there, too",
    ]


def test_errors_page_shows_what_is_said():
    page = (Path(__file__).parents[3] / PAGE).read_text()
    four, five = (full_text(AllReduce(A[1], n, torch.float32)) for n in (4, 5))
    cycle = {0: waits(0, A), 1: replace(waits(1, B), finished=("x",))}
    other = {0: waits(0, A), 1: computes(1, pending(A, text=five))}
    for reports in (cycle, other):
        said = ask(A, reports, text=four)
        assert f"\n{said.kind.__name__}: {said.text}\n" in page


def test_cycle_between_groups_names_them_where_keys_are_equal():
    ab, ba = ("sum", (0, 1, 2)), ("sum", (1, 0, 3))
    reports = {
        0: waits(0, ab),
        1: waits(1, ba),
        2: computes(2, pending(ab)),
        3: computes(3, pending(ba)),
    }
    # Rank 1 uses the key over another group that is stuck, too: that is told first.
    assert ask(ab, reports).cause == Cause.OTHER_GROUP
    reports[1] = waits(1, ("b", (1, 2)))
    reports[2] = waits(2, ("b", (2, 0)))
    said = ask(("sum", (0, 1)), reports)
    assert said.cause == Cause.CYCLE
    assert "rank 1 waits for 'b' over ranks 1, 2 before it submits 'sum'" in said.text


def test_other_move_is_a_mismatch_that_says_both():
    reports = {
        1: computes(1, pending(A, text="AllReduce of 5 torch.float32")),
        0: waits(0, A),
    }
    said = ask(A, reports)
    assert (said.cause, said.kind, said.ranks) == (Cause.OTHER_MOVE, MoveMismatch, (1,))
    assert said.sentence == (
        "under 'a' rank 1 submitted AllReduce of 5 torch.float32, "
        "rank 0 AllReduce of 4 torch.float32"
    )
    assert "not by" not in said.text


def test_other_move_of_one_in_three_names_the_odd_one():
    called = ("a", (0, 1, 2))
    reports = {
        0: computes(0, pending(called, text="int8")),
        1: computes(1, pending(called)),
    }
    said = ask(called, reports, rank=2)
    assert said.ranks == (0,)
    assert said.sentence.endswith(f"rank 0 submitted int8, ranks 1, 2 {TEXT}")


def test_other_move_far_away_is_no_mismatch_of_ours():
    b = ("b", (1, 2))
    reports = {1: waits(1, b), 2: computes(2, pending(b, text="int8"))}
    said = ask(A, reports)
    assert (said.cause, said.kind) == (Cause.OTHER_MOVE, WireTimeout)
    assert said.sentence.startswith("rank 0 waits for rank 1 to submit 'a'; under 'b'")


def test_other_order_of_a_group_is_another_group():
    said = ask(A, {0: waits(0, A), 1: waits(1, ("a", (1, 0)))})
    assert (said.cause, said.kind) == (Cause.OTHER_GROUP, MoveMismatch)
    assert said.sentence == (
        "rank 1 submitted 'a' over ranks 1, 0, others over ranks 0, 1"
    )


def test_same_key_of_another_group_is_innocent_if_it_will_end():
    other = ("a", (1, 2))
    reports = {1: waits(1, other), 2: computes(2, pending(other))}
    assert ask(A, reports).cause == Cause.UNDER_WAY


@pytest.mark.parametrize(
    ("report", "cause", "line"),
    [
        (None, Cause.SILENT, "rank 1 gave no answer: paused or dead"),
        (computes(1), Cause.LATE, "rank 1 computes; finished nothing so far"),
        (
            replace(computes(1, finished_seconds=3.0), finished=("x", "y")),
            Cause.LATE,  # what it finished it may have submitted long before
            "rank 1 computes; last finished 'y' 3 s ago",
        ),
        (
            replace(computes(1, submitted_seconds=3.0), finished=("x", "y")),
            Cause.NEVER,
            "rank 1 computes; last finished 'y'",
        ),
        (
            computes(1, submitted_seconds=AGE - 0.01),
            Cause.LATE,  # at about the same time: clocks cannot tell
            "rank 1 computes; finished nothing so far",
        ),
        (
            replace(computes(1, finished_seconds=99.0), finished=("x", "y")),
            Cause.LATE,
            "rank 1 computes; last finished 'y' 99 s ago",
        ),
        (
            computes(1, pending(("b", (1, 2)), age=1.0)),
            Cause.NEVER,
            "rank 1 has 'b' pending, which rank 2 did not submit; finished nothing so "
            "far",
        ),
        (
            computes(1, num_left_out=3),
            Cause.LATE,
            "rank 1 computes; finished nothing so far; 3 of its pending moves are not "
            "told",
        ),
    ],
)
def test_rank_that_waits_for_nothing_is_the_root(report, cause, line):
    said = ask(A, {0: waits(0, A), 1: report})
    assert (said.cause, said.kind, said.ranks) == (cause, WireTimeout, (1,))
    assert f"\n  {line}\n" in said.text


def test_root_is_found_along_a_chain_and_the_chain_is_told():
    b, c = ("b", (1, 2)), ("c", (2, 3))
    said = ask(A, {1: waits(1, b), 2: waits(2, c), 3: None})
    assert (said.cause, said.ranks) == (Cause.SILENT, (3,))
    assert said.sentence == (
        "rank 0 waits for rank 1 to submit 'a'; rank 1 waits for rank 2 to submit 'b'; "
        "rank 3 did not submit 'c' and gave no answer"
    )


def test_dead_rank_far_away_goes_before_a_near_one_that_computes():
    called, b = ("a", (0, 1, 2)), ("b", (2, 3))
    reports = {1: computes(1), 2: waits(2, b), 3: None}
    said = ask(called, reports)
    assert (said.cause, said.ranks) == (Cause.SILENT, (3,))
    reports[3] = computes(3)
    assert ask(called, reports).ranks == (1,)  # of two alike the nearer


def test_all_submitted_is_a_slow_link():
    said = ask(A, {0: computes(0, pending(A, 1)), 1: computes(1)})
    assert said.cause == Cause.UNDER_WAY
    assert "submitted by ranks 0, 1\n" in said.text


def test_text_of_a_large_group_stays_short():
    called = ("a", tuple(range(1000)))
    said = ask(called, dict.fromkeys(range(1, 1000)))
    assert len(said.text) < 2000
    assert said.ranks == tuple(range(1, 1000))
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 992 more" in said.text


def test_cycle_over_many_ranks_is_found_and_cut():
    size = 64
    keys = [(f"k{r}", (r, (r + 1) % size)) for r in range(size)]
    said = ask(keys[0], {r: waits(r, keys[r]) for r in range(size)})
    assert (said.cause, said.ranks) == (Cause.CYCLE, tuple(range(size)))
    assert said.sentence.endswith("; and 56 ranks more")


def site(what: str, line: int) -> str:
    return Call("world", "all_reduce", what, f"fail.py:{line}~0000000{line}").key


FOUR, FIVE = site("float32[4] SUM", 7), site("float32[5] SUM", 7)
ELSEWHERE = site("float32[4] SUM", 9)
BARRIER = ("world/barrier", (0, 1))


def test_one_call_with_other_tensors_is_a_mismatch():
    four, five = (FOUR, (0, 1)), (FIVE, (0, 1))
    said = ask(four, {0: waits(0, four), 1: waits(1, five)})
    assert (said.cause, said.kind) == (Cause.OTHER_TENSOR, MoveMismatch)
    assert said.sentence == (
        "ranks call all_reduce at fail.py:7 with float32[4] SUM (rank 0) and "
        "float32[5] SUM (rank 1)"
    )


def test_one_call_from_two_places_names_both():
    here, there = (FOUR, (0, 1)), (ELSEWHERE, (0, 1))
    said = ask(here, {0: waits(0, here), 1: waits(1, there)})
    assert (said.cause, said.kind) == (Cause.OTHER_PLACE, WireTimeout)
    assert said.sentence.startswith(
        "the same call was made from fail.py:7 (rank 0) and from fail.py:9 (rank 1)"
    )
    assert "named(...)" in said.fix


def test_call_that_both_made_is_not_compared():
    # Rank 1 still waits for the call of line 9, which rank 0 has made as well.
    here, there = (FOUR, (0, 1)), (ELSEWHERE, (0, 1))
    one = Report(1, (pending(there, 0),), *there, ())
    assert ask(here, {0: waits(0, here), 1: one}).cause == Cause.UNDER_WAY
    finished = replace(waits(1, BARRIER), finished=(ELSEWHERE,))
    assert ask(here, {0: waits(0, here), 1: finished}).cause == Cause.CYCLE


def test_branch_that_one_rank_skips_is_named_by_its_line():
    call = (FOUR, (0, 1))
    said = ask(call, {0: waits(0, call), 1: waits(1, BARRIER)})
    assert said.cause == Cause.CYCLE
    assert (
        "if rank 1 skipped all_reduce at fail.py:7 or rank 0 skipped barrier"
        in said.fix
    )


@pytest.mark.parametrize("asks", [0, 1])
def test_rank_held_by_a_move_without_a_wait_is_said_to_be(asks):
    # Rank 0 stands in DDP's backward(), which waits in C++.
    move = (FOUR, (0, 1))
    reports = {0: computes(0, pending(move)), 1: waits(1, BARRIER)}
    said = ask((move, BARRIER)[asks], reports, rank=asks)
    if asks == 1:
        assert (said.cause, said.ranks) == (Cause.HELD, (1, 0))
        assert f"rank 0 has '{FOUR}' pending, which rank 1 did not submit" in (
            said.sentence
        )
    else:
        assert said.cause == Cause.CYCLE  # it asks, so it does wait


def test_held_rank_leads_to_the_one_that_it_lacks():
    move, call = ("grads", (0, 2)), ("b", (0, 1))
    said = ask(call, {0: computes(0, pending(move)), 1: waits(1, call), 2: None}, 1)
    assert (said.cause, said.ranks) == (Cause.SILENT, (2,))
    assert "\n  rank 0 has 'grads' pending, which rank 2 did not submit" in said.text


def test_ranks_text():
    assert ranks_text([]) == "no rank"
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 2]) == "ranks 0, 2"


# Random situations: ranks along a chain wait each for the next, the last one is the
# cause or closes a cycle; moves that will end, on any ranks, must not distract.


@dataclass(frozen=True)
class Planted:
    """A situation, what is asked of it, and what should be answered."""

    reports: dict[int, Report | None]
    chain: tuple[int, ...]
    calls: tuple[Called, ...]
    cause: Cause
    back: int


@st.composite
def situations(draw) -> Planted:
    cause = draw(st.sampled_from(list(Cause)))
    num_ranks = draw(st.integers(3, 7))
    ranks = draw(st.permutations(range(num_ranks)))
    chain = ranks[: draw(st.integers(2, num_ranks - 1))]
    idle = ranks[len(chain) :]

    moves: dict[int, list[PendingMove]] = {r: [] for r in ranks}
    waiting: dict[int, Called] = {}

    def call(key: str, rank: int, lacks: int | None) -> Called:
        """`rank` waits for a new move that all but `lacks` have submitted."""
        there = draw(st.sets(st.sampled_from(idle)))
        members = {rank, *there} | ({lacks} if lacks is not None else set())
        called = (key, tuple(draw(st.permutations(sorted(members)))))
        heard = draw(st.sets(st.sampled_from(sorted(there)))) if there else set()
        moves[rank].append(pending(called, *sorted(heard)))
        for r in there - heard:  # what is heard of is not always told by the other
            moves[r].append(pending(called, age=draw(st.floats(0, AGE))))
        waiting[rank] = called
        return called

    links = pairwise(chain)
    names = [f"k{i}" for i in range(len(chain) - 1)]
    if cause in IN_TWO_WAYS:
        names[-1] = FOUR
    calls = [
        call(name, rank, after)
        for name, (rank, after) in zip(names, links, strict=True)
    ]
    last, back = chain[-1], draw(st.integers(0, len(chain) - 2))
    if cause is Cause.CYCLE:
        calls.append(call("back", last, chain[back]))
    elif cause is Cause.HELD:
        moves[last].append(pending(("held", (last, chain[back]))))
    elif cause in IN_TWO_WAYS:
        group = calls[-1][1]
        others = set(group) - {chain[-2], last}
        waiting[last] = (FIVE if cause is Cause.OTHER_TENSOR else ELSEWHERE, group)
        moves[last].append(pending(waiting[last], *sorted(others)))
    elif cause is Cause.UNDER_WAY:
        calls.append(call("end", last, None))
    elif cause is Cause.OTHER_MOVE:
        moves[last].append(pending(calls[-1], text="int8"))
    elif cause is Cause.OTHER_GROUP:
        moves[last].append(pending((calls[-1][0], (last, num_ranks + 1))))
    elif cause is Cause.NEVER:
        moves[last].append(pending(("later", (last, num_ranks)), age=1.0))
    for i in range(draw(st.integers(0, 4))):
        group = tuple(sorted(draw(st.sets(st.sampled_from(ranks), min_size=2))))
        for rank in group:
            moves[rank].append(pending((f"decoy{i}", group), age=OLD))
    reports: dict[int, Report | None] = {
        r: Report(
            r, tuple(draw(st.permutations(moves[r]))), *waiting.get(r, (None, None)), ()
        )
        for r in draw(st.permutations(ranks))
    }
    if cause is Cause.SILENT:
        reports[last] = None
    elif cause is Cause.UNKNOWN:
        del reports[last]
    return Planted(reports, tuple(chain), tuple(calls), cause, back)


@settings(max_examples=150, deadline=None)
@given(situations())
def test_planted_cause_is_found(planted: Planted):
    chain, calls = planted.chain, planted.calls
    travelled = {
        r: report and Report.from_json(report.to_json())
        for r, report in planted.reports.items()
    }
    assert travelled == planted.reports
    said = ask(calls[0], travelled, rank=chain[0])
    assert said.cause == planted.cause, said.text
    mismatches = (Cause.OTHER_MOVE, Cause.OTHER_GROUP, Cause.OTHER_TENSOR)
    wrong = planted.cause in mismatches
    mismatch = wrong and len(chain) == 2
    assert said.kind is (MoveMismatch if mismatch else WireTimeout)
    if planted.cause in (Cause.CYCLE, Cause.HELD):
        assert said.ranks == chain[planted.back :]
    elif planted.cause is Cause.UNDER_WAY:
        assert set(said.ranks) == set(calls[-1][1])
    elif planted.cause is not Cause.OTHER_MOVE:
        assert said.ranks == chain[-1:]
    told = "all_reduce" if planted.cause in IN_TWO_WAYS else repr(calls[-1][0])
    assert told in said.sentence


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=300),
            st.lists(st.integers(0, 9999), max_size=400),
            st.floats(0, 1e6),
        ),
        max_size=60,
    ),
    st.integers(1, 40),
)
def test_report_travels_bounded_and_keeps_what_matters(rows, times):
    moves = tuple(
        PendingMove(f"{i}{key}", tuple(group), "x" * times, seconds)
        for i, (key, group, seconds) in enumerate(rows * times)
    )
    awaited = max(moves, key=lambda m: m.seconds, default=None)
    called = (None, None) if awaited is None else (awaited.key, awaited.group)
    report = Report(3, moves, *called, ("x",))
    data = report.to_json()
    assert len(data) <= REPORT_BYTES
    back = Report.from_json(data)
    assert len(back.pending) + back.num_left_out == len(moves)
    assert replace(back, pending=(), num_left_out=0) == replace(report, pending=())
    assert [m for m in moves if m in back.pending] == list(back.pending)
    if back.num_left_out:
        assert awaited in back.pending
        kept = [m.seconds for m in back.pending if m != awaited]
        out = [m.seconds for m in moves if m not in back.pending]
        assert max(kept, default=0.0) <= min(out)


def test_report_of_monstrous_names_still_says_who_it_is():
    group = tuple(range(50_000))
    report = Report(3, (pending(("k", group)),), "k", group, ("y" * 70_000,))
    back = Report.from_json(report.to_json())
    assert back == Report(3, (), None, None, (), num_left_out=1)


GOOD = json.loads(Report(1, (pending(A),), *A, ("x",)).to_json())


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"null", b"{}", b"[" * 10_000, b" " * (REPORT_BYTES + 1)]
    + [json.dumps({**GOOD, field: []}).encode() for field in ("rank", "num_left_out")]
    + [
        json.dumps({**GOOD, **wrong}).encode()
        for wrong in (
            {"rank": float("inf")},
            {"pending": [1]},
            {"pending": 3},
            {"waiting_for_group": [None]},
            {"waiting_seconds": "x"},
        )
    ],
)
def test_malformed_report_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"report|JSON|Expecting|decode|float"):
        Report.from_json(data)
