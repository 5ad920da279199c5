"""Numbers of collectives: equal on members, different for all else."""

import torch

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    ReduceScatter,
)
from placet.wire.engine.keys import (
    TEXT_LENGTH,
    KeyTable,
    fingerprint,
    full_text,
    scope_of,
    short_text,
    short_texts,
)

PAIR = scope_of((0, 1))


def test_members_count_alike_in_any_order():
    one, other = KeyTable(), KeyTable()
    keys = ["a", "b", "a", "c", "a"]
    first = sorted((key, one.next_number(PAIR, key)) for key in keys)
    second = sorted((key, other.next_number(PAIR, key)) for key in reversed(keys))
    assert first == second


def test_numbers_differ_by_key_turn_group_order_and_account():
    table = KeyTable()
    scopes = [
        PAIR,
        scope_of((1, 0)),
        scope_of((0, 2)),
        scope_of((0,)),
        scope_of((0, 1), control=True),
    ]
    keys = ["a", "b", "ab", ""]
    numbers = [
        table.next_number(scope, key)
        for scope in scopes
        for key in keys
        for _ in range(500)
    ]
    assert len(set(numbers)) == len(scopes) * len(keys) * 500
    assert all(0 <= number < 2**64 for number in numbers)


def test_clear_begins_anew():
    table = KeyTable()
    first = table.next_number(PAIR, "a")
    assert table.next_number(PAIR, "a") != first
    table.clear()
    assert table.next_number(PAIR, "a") == first


def test_fingerprint_tells_all_that_members_must_agree_on():
    f32 = torch.float32
    moves = [
        AllReduce((0, 1), 4, f32),
        AllReduce((0, 1), 5, f32),
        AllReduce((0, 1), 4, torch.int32),
        AllReduce((0, 1), 4, f32, "max"),
        AllReduce((0, 1), 4, f32, "sum", "exchange"),
        AllReduce((0, 2), 4, f32),
    ]
    assert len({fingerprint(move) for move in moves}) == len(moves)
    assert fingerprint(AllReduce((0, 1), 4, f32)) == fingerprint(moves[0])


def test_long_moves_are_cut_in_texts_only():
    size = 40
    rows = tuple((1,) * size for _ in range(size))
    move = AllToAll(tuple(range(size)), rows, torch.float32)
    other = AllToAll(move.group, (*rows[:-1], (2,) * size), torch.float32)
    assert len(full_text(move)) < TEXT_LENGTH + 10
    assert fingerprint(move) != fingerprint(other)


def test_texts_show_the_algorithm_only_where_it_tells_them_apart():
    pair, f32 = (0, 1), torch.float32
    four, five = (full_text(AllReduce(pair, n, f32)) for n in (4, 5))
    other = full_text(AllReduce(pair, 4, f32, "sum", "exchange"))
    text = "AllReduce of 4 torch.float32 over ranks 0, 1, sum"
    assert short_text(AllReduce(pair, 4, f32)) == text
    assert short_texts([four, five]) == [text, text.replace("4", "5")]
    assert short_texts([four, four]) == [text, text]
    assert short_texts([four, other]) == [
        f"{text}, algorithm 'ring', blocks ()",
        f"{text}, algorithm 'exchange', blocks ()",
    ]
    moves = [
        (AllGather(pair, (1, 2), f32), "AllGather of (1, 2) torch.float32"),
        (ReduceScatter(pair, (1, 2), f32), "ReduceScatter of (1, 2) torch.float32"),
        (BroadcastFrom(pair, 1, 4, f32), "BroadcastFrom of 4 torch.float32"),
    ]
    for move, start in moves:
        assert short_text(move).startswith(f"{start} over ranks 0, 1")


def test_full_texts_tell_all_that_members_must_agree_on():
    f32, pair = torch.float32, (0, 1)
    moves = [
        AllReduce(pair, 4, f32),
        AllReduce(pair, 4, f32, "max"),
        AllReduce(pair, 4, torch.int32),
        AllReduce(pair, 4, f32, "sum", "exchange"),
        ReduceScatter(pair, (2, 2), f32),
        AllGather(pair, (2, 2), f32),
        BroadcastFrom(pair, 0, 4, f32),
        BroadcastFrom(pair, 1, 4, f32),
    ]
    assert len({full_text(move) for move in moves}) == len(moves)
