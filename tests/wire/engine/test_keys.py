"""Numbers of collectives: equal on members, different for all else."""

import torch

from placet.boxing.moves import AllReduce, AllToAll
from placet.wire.engine.keys import (
    TEXT_LENGTH,
    KeyTable,
    fingerprint,
    full_text,
    scope_of,
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
    assert full_text(AllReduce((0, 1), 4, torch.float32)).startswith("AllReduce(")
