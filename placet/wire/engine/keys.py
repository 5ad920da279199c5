"""How members find that they mean the same collective: by number, from group and key.

    number = hash(group, key) + turn * stride, in 64 bits

The turn counts how often this rank has used the key in this group, so a key serves
again at each step. The stride is odd, so a key's turns never meet; two of n collectives
in flight get one number with a chance of about n**2 / 2**65, 1 in 10**9 for 200,000.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import pack

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
)

TEXT_LENGTH = 600
"""A move's text in a message has about so many characters at most."""

_REST = "; "
"""Between a move's short text and the rest."""

_STRIDE = 0x9E3779B97F4A7C15
"""Odd, and far from simple fractions of 2**64: turns spread evenly."""

_MASK = (1 << 64) - 1


class KeyTable:
    """Counts how often each key was used in each group.

    It grows by about 100 bytes with each distinct key of a group and never shrinks, so
    keys should be few and static ("grads.3", not "step 1207, grads.3").
    """

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}

    def next_number(self, scope: bytes, key: str) -> int:
        """The number of the key's next collective in a scope (see `scope_of`)."""
        name = _hash(scope + key.encode())
        turn = self._turns.get(name, 0)
        self._turns[name] = turn + 1
        return (name + turn * _STRIDE) & _MASK

    def clear(self) -> None:
        """Begin all counts anew."""
        self._turns.clear()


def scope_of(group: tuple[int, ...], *, control: bool = False) -> bytes:
    """Where a key counts: in a group, apart from the wire's own moves (control)."""
    return blake2b(pack(f"<?{len(group)}q", control, *group), digest_size=16).digest()


def fingerprint(move: Move) -> int:
    """A hash (64 bits) of all that members must agree on."""
    return _hash(repr(move).encode())


def short_text(move: Move) -> str:
    """`AllReduce of 4 torch.float32 over ranks 0, 1, sum`: what people tell apart."""
    match move:
        case AllReduce():
            size, more = f"{move.num_elements}", f", {move.reduction}"
        case ReduceScatter():
            size, more = f"{move.counts}", f", {move.reduction}"
        case BroadcastFrom():
            size, more = f"{move.num_elements}", f", from rank {move.root}"
        case AllGather() | AllToAll():
            size, more = f"{move.counts}", ""
    group = move.group
    ranks = ", ".join(map(str, group)) if len(group) <= 8 else f"0 to {len(group) - 1}"
    if len(group) > 8 and group != tuple(range(len(group))):
        ranks = f"{', '.join(map(str, group[:8]))} and {len(group) - 8} more"
    kind = type(move).__name__
    return f"{kind} of {_cut(size)} {move.dtype} over ranks {ranks}{more}"


def full_text(move: Move) -> str:
    """All that members must agree on: the short text and the rest, cut if it is long.

    `short_texts` makes several of them readable.
    """
    match move:
        case AllReduce():
            rest = f"algorithm {move.algorithm!r}, blocks {_cut(str(move.blocks))}"
        case AllGather():
            rest = f"algorithm {move.algorithm!r}, chosen {move.chosen!r}"
        case ReduceScatter():
            rest = f"algorithm {move.algorithm!r}"
        case AllToAll() | BroadcastFrom():
            return short_text(move)
    return f"{short_text(move)}{_REST}{rest}"


def short_texts(texts: Sequence[str]) -> list[str]:
    """Full texts, without the rest where they can be told apart without it."""
    short = [text.partition(_REST)[0] for text in texts]
    if len(set(short)) == len(set(texts)):
        return short
    return [text.replace(_REST, ", ") for text in texts]


def _cut(text: str) -> str:
    half = TEXT_LENGTH // 5
    return text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
