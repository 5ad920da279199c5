"""A large move is cut into pieces that send exactly the same bytes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placet.boxing.moves import AllGather, AllReduce, BroadcastFrom
from placet.wire.chunks import CHUNK_BYTES, chunks, slices

MIB = 1 << 20
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.int8])


def total(pieces, rank):
    sent = sum(piece.sent_bytes(rank) for piece in pieces)
    return sent, sum(piece.received_bytes(rank) for piece in pieces)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 17), DTYPES, st.integers(4 * MIB + 8, 300 * MIB))
def test_an_all_reduce_is_cut_to_the_same_bytes(size, dtype, num_bytes):
    move = AllReduce(tuple(range(size)), num_bytes // dtype.itemsize, dtype, "max")
    pieces = chunks(move)
    # Where the ring has an odd number of segments, a piece is above 2 MiB a member.
    most_bytes = max(CHUNK_BYTES, 2 * size * MIB + 64 * size)
    assert len(pieces) > 1 or move.num_elements * dtype.itemsize <= most_bytes
    assert all(p.num_elements * dtype.itemsize <= most_bytes for p in pieces)
    assert {(p.group, p.dtype, p.reduction) for p in pieces} == {
        (move.group, dtype, "max")
    }
    assert sum(p.num_elements for p in pieces) == move.num_elements
    for rank in move.group:
        assert total(pieces, rank) == total((move,), rank)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 9), st.integers(0, 9), st.integers(1, 3000), st.integers(8, 4096))
def test_any_move_sends_the_same_bytes_in_small_pieces(size, root, num, chunk_bytes):
    group = tuple(range(size))
    for move in (
        AllReduce(group, num, torch.float32),
        BroadcastFrom(group, root % size, num, torch.int16),
    ):
        pieces = chunks(move, chunk_bytes)
        parts = slices(pieces)
        assert [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]]
        assert (parts[0].start, parts[-1].stop) == (0, num)
        for rank in group:
            assert total(pieces, rank) == total((move,), rank)


def test_pieces_are_about_as_large_as_asked_for():
    move = AllReduce((0, 1), 16 * MIB, torch.float32)
    assert len(chunks(move)) == 16
    assert len(chunks(BroadcastFrom((0, 1), 0, 16 * MIB, torch.float32))) == 16


def test_what_cannot_be_cut_stays_whole():
    for move in (
        AllReduce((0, 1), MIB, torch.float32),
        AllReduce((0,), 64 * MIB, torch.float32),
        AllReduce((0, 1), 64 * MIB, torch.float32, algorithm="exchange"),
        AllGather((0, 1), (64 * MIB,) * 2, torch.float32),
        BroadcastFrom((0, 1), 0, 0, torch.float32),
    ):
        assert chunks(move) == (move,)
