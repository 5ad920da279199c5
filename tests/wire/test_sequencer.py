"""Announcements in, launches out: one order, complete moves only, the urgent first."""

import random
from collections import Counter
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from placet.wire.sequencer import (
    ROOM,
    Announcement,
    Sequencer,
    launch_numbers,
    reporter,
)

PAIR = (0, 1)


def announcement(rank, number, key, group=PAIR, *, priority=0, chunks=1, what=1):
    text = f"a move of kind {what}"
    return Announcement(rank, number, group, key, text, what, priority, chunks)


def announce(sequencer, key, group=PAIR, *, number=0, **settings):
    """All members announce a move."""
    for rank in group:
        found = sequencer.announce(announcement(rank, number, key, group, **settings))
        assert found == []


def keys(launches):
    return [launch.key for launch in launches]


class Run:
    """A random program on random ranks, announced and launched in a random order.

    Every rank submits its moves in an order of its own; chunks end in any order.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.num_ranks = self.random.randint(2, 5)
        self.moves = [self._move(i) for i in range(self.random.randint(1, 12))]
        self.sequencer = Sequencer()
        self.todo = {
            rank: self.random.sample(mine, len(mine))
            for rank in range(self.num_ranks)
            for mine in [[m for m in self.moves if rank in m[1]]]
        }
        self.sent = {rank: {} for rank in self.todo}
        self.launched = []
        self.under_way = []

    def _move(self, i):
        size = self.random.randint(1, self.num_ranks)
        group = tuple(self.random.sample(range(self.num_ranks), size))
        return f"key{i % 5}", group, self.random.choice([1, 1, 3, 6]), i

    def step(self):
        """One event; false once nothing is left to happen."""
        ranks = [rank for rank, moves in self.todo.items() if moves]
        if self.under_way and (not ranks or self.random.random() < 0.5):
            i = self.random.randrange(len(self.under_way))
            self.sequencer.done(*self.under_way.pop(i))
        elif ranks:
            rank = self.random.choice(ranks)
            # Turns of one key stay in order; all else is free.
            key, group, chunks, i = self.todo[rank].pop()
            same = [m for m in self.todo[rank] if m[:2] == (key, group)]
            if same:
                first = min([*same, (key, group, chunks, i)], key=lambda m: m[3])
                if first[3] != i:
                    self.todo[rank].remove(first)
                    self.todo[rank].append((key, group, chunks, i))
                    key, group, chunks, i = first
            number = len(self.sent[rank])
            self.sent[rank][number] = i
            said = announcement(
                rank, number, key, group, priority=i % 3, chunks=chunks, what=i
            )
            assert self.sequencer.announce(said) == []
        else:
            return False
        for launch in self.sequencer.launches():
            moves = {self.sent[rank][number] for rank, number in launch.numbers}
            # Complete: every member has announced this very move.
            (i,) = moves
            assert sorted(r for r, _ in launch.numbers) == sorted(self.moves[i][1])
            self.launched.append((i, launch))
            if self.moves[i][2] > 1:
                self.under_way.append((launch.numbers[0][0], launch.numbers[0][1]))
                busy = Counter(
                    r
                    for rank, number in self.under_way
                    for r in self.moves[self.sent[rank][number]][1]
                )
                assert max(busy.values()) <= ROOM
        return True


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_all_complete_moves_are_launched_in_one_order(seed):
    run = Run(seed)
    for _ in count():
        if not run.step():
            break
    times = Counter(i for i, _ in run.launched)
    assert times == {i: chunks for *_, chunks, i in run.moves}
    assert run.sequencer.idle
    # What each rank is told is its part of the one order, so any two moves that two
    # ranks share follow one another the same way on both.
    launches = [launch for _, launch in run.launched]
    for rank in range(run.num_ranks):
        told = [run.sent[rank][n] for n in launch_numbers(launches, rank)]
        assert told == [i for i, _ in run.launched if rank in run.moves[i][1]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), max_size=12))
def test_the_urgent_goes_first_then_the_lesser_key(moves):
    sequencer = Sequencer()
    for number, (priority, name) in enumerate(moves):
        announce(sequencer, f"k{name}", number=number, priority=priority)
    wanted = sorted((-priority, f"k{name}") for priority, name in moves)
    assert keys(sequencer.launches()) == [key for _, key in wanted]
    assert sequencer.launches() == []
    assert sequencer.idle


def test_the_largest_priority_of_all_members_counts():
    sequencer = Sequencer()
    announce(sequencer, "a", number=0)
    sequencer.announce(announcement(0, 1, "b"))
    sequencer.announce(announcement(1, 1, "b", priority=5))
    assert keys(sequencer.launches()) == ["b", "a"]


def test_an_urgent_move_goes_between_chunks():
    sequencer = Sequencer()
    announce(sequencer, "bulk", number=0, chunks=6)
    assert keys(sequencer.launches()) == ["bulk"] * ROOM
    announce(sequencer, "urgent", number=1, priority=1, chunks=3)
    assert sequencer.launches() == []
    order = []
    while not sequencer.idle:
        number = 0 if order.count("bulk") < ROOM else 1
        sequencer.done(0, number)
        sequencer.done(0, 1 - number)
        order += keys(sequencer.launches())
        assert len(order) < 20
    assert order == ["urgent"] * 3 + ["bulk"] * 4


def test_a_lesser_chunk_does_not_take_the_room_of_an_urgent_one():
    sequencer = Sequencer(room=1)
    announce(sequencer, "left", (0, 1), number=0, chunks=2)
    announce(sequencer, "right", (2, 3), number=0, chunks=2)
    assert keys(sequencer.launches()) == ["left", "right"]
    announce(sequencer, "wide", (1, 2), number=1, priority=1, chunks=2)
    sequencer.done(0, 0)
    assert sequencer.launches() == []
    sequencer.done(2, 0)
    assert keys(sequencer.launches()) == ["wide"]


def test_done_counts_only_what_is_under_way():
    sequencer = Sequencer(room=1)
    announce(sequencer, "bulk", chunks=3)
    sequencer.done(0, 0)
    assert keys(sequencer.launches()) == ["bulk"]
    sequencer.done(0, 9)
    assert sequencer.launches() == []


def test_a_mismatch_fails_all_members_and_is_never_launched():
    sequencer = Sequencer()
    trio = (0, 1, 2)
    assert sequencer.announce(announcement(0, 7, "x", trio)) == []
    (failure,) = sequencer.announce(announcement(2, 8, "x", trio, what=2))
    assert failure.kind == "MoveMismatch"
    assert failure.numbers == ((0, 7), (2, 8))
    assert "key 'x' over ranks 0, 1, 2: rank 0 submitted a move of kind 1; rank 2 " in (
        failure.text
    )
    (failure,) = sequencer.announce(announcement(1, 9, "x", trio))
    assert failure.numbers == ((1, 9),)
    assert failure.text.endswith("rank 1 submitted a move of kind 1")
    assert sequencer.launches() == []
    assert sequencer.idle
    announce(sequencer, "x", trio, number=10)
    assert keys(sequencer.launches()) == ["x"]


def test_a_deadline_names_who_is_late_and_what_it_does_instead():
    sequencer = Sequencer()
    sequencer.announce(announcement(0, 0, "a"))
    sequencer.announce(announcement(1, 0, "b"))
    (failure,) = sequencer.expire(0, 0, 1.5)
    assert failure.kind == "WireTimeout"
    assert failure.text == (
        "key 'a' over ranks 0, 1: rank 0 waited 1.5 s; submitted by rank 0; not by "
        "rank 1, which has submitted 'b' (not submitted by rank 0)"
    )
    assert sequencer.expire(0, 0, 1.5) == []
    (late,) = sequencer.announce(announcement(1, 1, "a"))
    assert late.numbers == ((1, 1),)
    assert late.text == failure.text


def test_a_deadline_that_passes_during_the_launch_fails_nothing():
    sequencer = Sequencer()
    announce(sequencer, "a")
    announce(sequencer, "bulk", number=1, chunks=2)
    sequencer.launches()
    assert sequencer.expire(0, 0, 1.0) == []
    assert sequencer.expire(0, 1, 1.0) == []


def test_a_lost_rank_fails_what_it_belongs_to_and_nothing_else():
    sequencer = Sequencer(room=1)
    announce(sequencer, "bulk", (0, 1), number=0, chunks=4)
    assert keys(sequencer.launches()) == ["bulk"]
    sequencer.announce(announcement(0, 1, "wait", (0, 2)))
    (failure,) = sequencer.lose(1, "its link closed")
    assert failure.kind == "PeerLost"
    assert failure.numbers == ((0, 0), (1, 0))
    assert failure.text == (
        "key 'bulk' over ranks 0, 1: rank 1 takes no part: its link closed"
    )
    assert sequencer.lose(1, "again") == []
    (failure,) = sequencer.announce(announcement(0, 2, "late", (0, 1)))
    assert failure.numbers == ((0, 2),)
    # The room that the lost chunk had is free again.
    sequencer.announce(announcement(2, 0, "wait", (0, 2)))
    announce(sequencer, "more", (0, 2), number=3, chunks=2)
    assert keys(sequencer.launches()) == ["more", "wait"]


def test_the_reporter_is_one_of_the_members():
    assert reporter((3, 1, 2)) == 1
