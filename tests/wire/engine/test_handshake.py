"""Both sides of a handshake, byte by byte, with no socket."""

import secrets
from collections.abc import Callable

import pytest

from placet.wire.engine import handshake
from placet.wire.engine.handshake import (
    ANSWER,
    HELLO,
    OPENING,
    PROOF_BYTES,
    WELCOME,
    Caller,
    Read,
    Refused,
    Side,
    Write,
    call,
    listen,
)

TOKEN = secrets.token_bytes(32)
HELLO_BYTES = OPENING.size + HELLO.size
ANSWER_BYTES = OPENING.size + ANSWER.size


class Talker:
    """A side, driven by hand: what it writes, and bytes for it to read."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.want: Read | Write | None = next(side)
        self.result: Caller | None = None

    def go_on(self, data: bytes = b"") -> None:
        try:
            self.want = self.side.send(data)
        except StopIteration as end:
            self.want, self.result = None, end.value

    def written(self) -> bytes:
        assert isinstance(self.want, Write)
        data = self.want.data
        self.go_on()
        return data

    def read(self, data: bytes) -> None:
        while data:
            if isinstance(self.want, Write):  # a farewell
                self.go_on()
            assert isinstance(self.want, Read)
            now, data = data[: self.want.num_bytes], data[self.want.num_bytes :]
            self.go_on(now)


CALLER = Caller(2, 1)


def pair(caller: Caller = CALLER, **change) -> tuple[Talker, Talker]:
    expected = change.get("expected", {2: 1})
    listener = listen(change.get("token", TOKEN), 1, expected)
    return Talker(call(TOKEN, caller)), Talker(listener)


def converse(
    src: Talker, dst: Talker, change: Callable[[int, bytes], bytes] = lambda _, d: d
) -> None:
    """All messages in turn; `change` may alter each."""
    dst.read(change(0, src.written()))
    src.read(change(1, dst.written()))
    dst.read(change(2, src.written()))
    src.read(change(3, WELCOME))


def test_both_sides_learn_which_connection_it_is():
    src, dst = pair(Caller(2, 1, 3, 4), expected={2: 4})
    converse(src, dst)
    assert src.result == dst.result == Caller(2, 1, 3, 4)


@pytest.mark.parametrize("message", range(4))
def test_one_wrong_bit_anywhere_is_refused(message: int):
    sizes = (HELLO_BYTES, ANSWER_BYTES, PROOF_BYTES, len(WELCOME))
    for bit in range(0, sizes[message] * 8, 5):

        def flip(number: int, data: bytes, bit: int = bit) -> bytes:
            if number != message:
                return data
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            return bytes(changed)

        with pytest.raises(Refused):
            converse(*pair(), change=flip)


def test_another_token_is_refused_by_either_side():
    src, dst = pair(token=secrets.token_bytes(32))
    dst.read(src.written())
    with pytest.raises(Refused, match="wrong proof from the listener"):
        src.read(dst.written())
    # A caller without the token, who takes any answer:
    listener = Talker(listen(TOKEN, 1, {2: 1}))
    listener.read(Talker(call(b"guess", Caller(2, 1))).written())
    listener.written()
    with pytest.raises(Refused, match="wrong proof from who called as rank 2"):
        listener.read(secrets.token_bytes(PROOF_BYTES))


def test_what_was_said_once_does_not_serve_again():
    said: list[bytes] = []

    def overhear(_: int, data: bytes) -> bytes:
        said.append(data)
        return data

    converse(*pair(), change=overhear)
    listener = Talker(listen(TOKEN, 1, {2: 1}))
    listener.read(said[0])
    listener.written()
    with pytest.raises(Refused, match="wrong proof from who called"):
        listener.read(said[2])
    caller = Talker(call(TOKEN, Caller(2, 1)))
    caller.written()
    with pytest.raises(Refused, match="wrong proof from the listener"):
        caller.read(said[1])


def test_a_proof_sent_back_to_its_maker_is_refused():
    # A stranger calls rank 1 and hands it back the listener's own proof.
    _, listener = pair()
    listener.read(Talker(call(b"guess", Caller(2, 1))).written())
    _, proof = ANSWER.unpack(listener.written()[OPENING.size :])
    with pytest.raises(Refused, match="wrong proof from who called"):
        listener.read(proof)


def test_a_proof_made_for_another_pair_is_refused():
    # A stranger between rank 2, that calls rank 0, and rank 1, that waits for rank 2.
    caller = Talker(call(TOKEN, Caller(2, 0)))
    listener = Talker(listen(TOKEN, 1, {2: 1}))
    hello = caller.written()
    nonce = hello[-32:]
    body = HELLO.pack(2, 1, 0, 1, nonce)
    listener.read(hello[: OPENING.size] + body)
    with pytest.raises(Refused, match="wrong proof from the listener"):
        caller.read(listener.written())


@pytest.mark.parametrize(
    "caller",
    [
        Caller(3, 1),  # not expected
        Caller(1, 1),  # itself
        Caller(2, 0),  # meant for another
        Caller(2, 1, 1, 1),  # beyond the last socket
        Caller(2, 1, 0, 2),  # another number of sockets
    ],
)
def test_an_unexpected_caller_is_refused(caller: Caller):
    src, dst = pair(caller)
    with pytest.raises(Refused, match=r"Caller\(.*\) was not expected by rank 1"):
        dst.read(src.written())


def test_a_stranger_is_refused_after_ten_bytes():
    _, listener = pair()
    with pytest.raises(Refused, match=r"began with b'GET / HT': not a rank"):
        listener.read(b"GET / HTTP")


def test_another_version_is_told_apart_from_a_stranger(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handshake, "VERSION", 2)
    caller = Talker(call(TOKEN, Caller(2, 1)))
    hello = caller.written()
    monkeypatch.undo()
    listener = Talker(listen(TOKEN, 1, {2: 1}))
    listener.read(hello[: OPENING.size])
    assert isinstance(listener.want, Write)
    answer = listener.want.data
    with pytest.raises(Refused, match=r"speaks version 2 .* this rank 1: install"):
        listener.go_on()
    monkeypatch.setattr(handshake, "VERSION", 2)
    with pytest.raises(Refused, match=r"speaks version 1 .* this rank 2: install"):
        caller.read(answer)
