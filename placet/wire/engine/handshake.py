"""How two ranks prove to each other who they are, before anything else is read.

All ranks hold one secret token. The connecting rank calls, the listening one answers:

    caller -> listener   HELLO    version, both ranks, which socket of the pair, nonce c
    listener -> caller   ANSWER   version, nonce l, HMAC(token, "listener", HELLO, l)
    caller -> listener   PROOF    HMAC(token, "caller", HELLO, l)
    listener -> caller   WELCOME  and, on one host, shared memory

A nonce is 32 random bytes, used once. Each side's proof covers the nonce of the other,
so an old proof does not serve again; it covers who speaks, so a proof cannot be sent
back to the one that made it, nor be used for another pair of ranks. The token itself
never travels here.

Both sides are generators: they ask for `Read` and `Write` and touch no socket.
"""

import hmac
import secrets
import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass

MAGIC = b"placet\r\n"
VERSION = 1
WELCOME = b"welcome\n"
TOKEN_BYTES = 32

OPENING = struct.Struct("<8sH")
"""magic, version: how HELLO and ANSWER begin, in every version."""
HELLO = struct.Struct("<IIHH32s")
"""src, dst, index, num_sockets, nonce."""
ANSWER = struct.Struct("<32s32s")
"""nonce, proof."""
PROOF_BYTES = 32


class Refused(ValueError):
    """The other side is not who it should be; the text says what was wrong."""


@dataclass(frozen=True)
class Read:
    """A side waits for exactly so many bytes."""

    num_bytes: int


@dataclass(frozen=True)
class Write:
    """A side sends these bytes."""

    data: bytes


@dataclass(frozen=True)
class Caller:
    """Which connection this is.

    Args:
        src: the rank that connects.
        dst: the rank that listens.
        index: which of the pair's sockets.
        num_sockets: how many the pair has.
    """

    src: int
    dst: int
    index: int = 0
    num_sockets: int = 1


Side = Generator[Read | Write, bytes, Caller]
"""Yields what it needs, is sent the bytes read (or nothing), returns the connection."""


def call(token: bytes, caller: Caller) -> Side:
    """The connecting side.

    Raises:
        Refused: the listener did not prove that it is rank `caller.dst`.
    """
    hello = _opening(VERSION) + HELLO.pack(
        caller.src,
        caller.dst,
        caller.index,
        caller.num_sockets,
        secrets.token_bytes(32),
    )
    yield Write(hello)
    _check_opening((yield Read(OPENING.size)))
    nonce, proof = ANSWER.unpack((yield Read(ANSWER.size)))
    if not hmac.compare_digest(proof, _proof(token, b"listener", hello, nonce)):
        raise Refused("a wrong proof from the listener")
    yield Write(_proof(token, b"caller", hello, nonce))
    if (yield Read(len(WELCOME))) != WELCOME:
        raise Refused("no welcome after the proof")
    return caller


def listen(token: bytes, rank: int, expected: Mapping[int, int]) -> Side:
    """The listening side, up to the proof; the welcome is sent by who runs it.

    Args:
        token: the secret of all ranks.
        rank: this rank.
        expected: the ranks that may call here, and how many sockets each has.

    Raises:
        Refused: the caller did not prove that it is one of them.
    """
    opening = yield Read(OPENING.size)
    try:
        _check_opening(opening)
    except Refused:
        if opening.startswith(MAGIC):  # one of ours: tell it which version this is
            yield Write(_opening(VERSION))
        raise
    rest = yield Read(HELLO.size)
    src, dst, index, num_sockets, _ = HELLO.unpack(rest)
    caller = Caller(src, dst, index, num_sockets)
    if dst != rank or num_sockets != expected.get(src) or index >= num_sockets:
        raise Refused(f"{caller} was not expected by rank {rank}")
    hello, nonce = opening + rest, secrets.token_bytes(32)
    answer = ANSWER.pack(nonce, _proof(token, b"listener", hello, nonce))
    yield Write(_opening(VERSION) + answer)
    given = yield Read(PROOF_BYTES)
    if not hmac.compare_digest(given, _proof(token, b"caller", hello, nonce)):
        raise Refused(f"a wrong proof from who called as rank {src}")
    return caller


def _opening(version: int) -> bytes:
    return OPENING.pack(MAGIC, version)


def _check_opening(data: bytes) -> None:
    magic, version = OPENING.unpack(data)
    if magic != MAGIC:
        raise Refused(f"began with {magic!r}: not a rank of placet's")
    if version != VERSION:
        raise Refused(
            f"speaks version {version} of placet's handshake, this rank {VERSION}: "
            "install the same placet on all hosts"
        )


def _proof(token: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    # `hello` and `nonce` have fixed sizes, so no two inputs give the same bytes.
    return hmac.digest(token, b"placet " + role + b"\0" + hello + nonce, "sha256")
