"""How the ranks of a job meet: from a store of keys to one link for each pair.

Each rank writes into a store where it listens, and reads where the others do. Of each
pair, the higher rank calls the lower one. Ranks of one host meet over a Unix socket,
and pass each other shared memory; others over TCP. All who call prove who they are.

The listeners close when all have come, so training has no open port.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, Protocol

from placet.errors import RanksDiffer, WireTimeout
from placet.settings import network_interface
from placet.wire.engine.core import Link
from placet.wire.engine.forking import keep_from_children
from placet.wire.engine.gathering import Door, Gathered, Plan, gather, missing
from placet.wire.engine.handshake import TOKEN_BYTES, VERSION, Caller
from placet.wire.engine.hosts import host_name, own_address
from placet.wire.engine.listening import (
    Address,
    can_share_memory,
    listen_far,
    listen_near,
    tune,
)

MOST_SOCKETS = 64
"""So many sockets may join two ranks."""

LEAST_SECONDS = 0.01
"""What is left for a look into the store once the deadline has passed."""


class MeetingStore(Protocol):
    """Keys and values that all ranks see, used for one meeting only."""

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""

    def get(self, key: str, seconds: float) -> bytes:
        """Read a value once it is there.

        Args:
            key: its key.
            seconds: how long to wait for it; always positive.

        Raises:
            TimeoutError: it was not there in time.
        """


@dataclass(frozen=True)
class Meeting:
    """What came of it.

    Args:
        links: one for each other rank, by rank; peers are ranks. Their sockets do not
            block.
        hosts: for each rank an opaque name of its host; equal for ranks of one host.
        num_refused: connections that were dropped since they proved nothing.
    """

    links: tuple[Link, ...]
    hosts: tuple[str, ...]
    num_refused: int = 0


@dataclass(frozen=True)
class _Near:
    """What a rank tells all others first."""

    version: int
    host: str
    place: str
    memory_bytes: int  # 0: none wanted


@dataclass(frozen=True)
class _Far:
    """What a rank tells then, where there are several hosts."""

    place: str
    port: int
    num_sockets: list[int]  # for each rank, 0 for those of its own host


def meet(
    store: MeetingStore,
    rank: int,
    num_ranks: int,
    *,
    timeout_seconds: float,
    share_memory: bool,
    memory_bytes: int,
    num_sockets: Callable[[int], int] | int = 1,
    interface: str | None = None,
    towards: str | None = None,
    heartbeat_seconds: float = 10.0,
    host: str | None = None,
) -> Meeting:
    """Connect this rank with all others; every rank calls it.

    Args:
        store: where the ranks find each other; empty, and this meeting's alone.
        rank: this rank.
        num_ranks: how many ranks there are.
        timeout_seconds: how long to wait for the others.
        share_memory: whether this rank's core wants memory shared with ranks of its
            host; a pair has it if both want it.
        memory_bytes: the size of each direction's memory, equal on all ranks.
        num_sockets: how many TCP sockets to a rank of another host: a number, or a
            function of that rank, symmetric and equal on all ranks.
        interface: the network interface for other hosts; by default that of
            GLOO_SOCKET_IFNAME.
        towards: where no interface is named: what all hosts reach, such as torchrun's
            MASTER_ADDR; see `hosts.own_address`.
        heartbeat_seconds: a lost host is noticed so soon; see `listening.tune`.
        host: this host's name, for tests; ranks with different names use TCP.

    Raises:
        ValueError: an argument makes no sense, or no address is found.
        RanksDiffer: ranks came with different versions, memory or numbers of sockets.
        WireTimeout: some did not come in time; names them.
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank {rank} of {num_ranks}: ranks are 0 to {num_ranks - 1}")
    if timeout_seconds <= 0 or (share_memory and memory_bytes <= 0):
        raise ValueError(
            f"timeout_seconds={timeout_seconds}, memory_bytes={memory_bytes}: both "
            "must be positive"
        )
    wishes = _Wishes(
        host_name() if host is None else host,
        memory_bytes if share_memory and can_share_memory() else 0,
        num_sockets if callable(num_sockets) else lambda _: num_sockets,
        interface or network_interface(),
        towards,
        heartbeat_seconds,
    )
    if num_ranks == 1:
        return Meeting((), (wishes.host,))
    return _meet(
        _Board(store, rank, num_ranks, timeout_seconds, time.monotonic()), wishes
    )


@dataclass(frozen=True)
class _Wishes:
    """The arguments of `meet`, settled."""

    host: str
    memory_bytes: int
    num_sockets: Callable[[int], int]
    interface: str | None
    towards: str | None
    heartbeat_seconds: float


def _meet(board: "_Board", wishes: _Wishes) -> Meeting:
    rank, host = board.rank, wishes.host
    with ExitStack() as stack:
        listener, address = stack.enter_context(listen_near())
        if rank == 0:
            board.store.set("token", secrets.token_bytes(TOKEN_BYTES))
        mine = _Near(VERSION, host, address.place, wishes.memory_bytes)
        nears = _share_near(board, mine)
        near = {peer for peer in board.peers() if nears[peer].host == host}
        doors = [Door(listener, {peer: 1 for peer in near if peer > rank})]
        calls = {
            Caller(rank, peer): Address(nears[peer].place)
            for peer in near
            if peer < rank
        }
        if any(card.host != nears[0].host for card in nears):
            far = {peer: wishes.num_sockets(peer) for peer in board.peers() - near}
            place = own_address(wishes.interface, wishes.towards)
            listener, address = stack.enter_context(listen_far(place))
            doors.append(Door(listener, {p: n for p, n in far.items() if p > rank}))
            calls |= _share_far(board, address, far)
        # Rank 0 set the token before it said where it listens, so it is there.
        token = board.store.get("token", board.timeout_seconds)
        memory = {p: min(mine.memory_bytes, nears[p].memory_bytes) for p in near}
        plan = Plan(rank, token, tuple(doors), calls, memory)
        state = stack.enter_context(closing(Gathered()))
        if not gather(plan, board.until, state):
            board.give_up(list(missing(plan, state)))
        links = _links(rank, state, memory, wishes.heartbeat_seconds)
        state.proved.clear()  # they belong to the links now
    return Meeting(links, tuple(card.host for card in nears), state.num_refused)


@dataclass(frozen=True)
class _Board:
    """The store as one rank sees it, up to a deadline."""

    store: MeetingStore
    rank: int
    num_ranks: int
    timeout_seconds: float
    since: float

    @property
    def until(self) -> float:
        """The deadline, on `time.monotonic`."""
        return self.since + self.timeout_seconds

    def peers(self) -> set[int]:
        """All other ranks."""
        return {peer for peer in range(self.num_ranks) if peer != self.rank}

    def share(self, what: str, card: dict[str, Any]) -> list[dict[str, Any]]:
        """Write this rank's card, read those of all ranks."""
        self.store.set(f"{what}/{self.rank}", json.dumps(card).encode())
        cards, absent = [], []
        for peer in range(self.num_ranks):
            left = max(LEAST_SECONDS, self.until - time.monotonic())
            try:
                cards.append(json.loads(self.store.get(f"{what}/{peer}", left)))
            except TimeoutError:
                absent.append(f"rank {peer} never published its {what}")
        if absent:
            self.give_up(absent)
        return cards

    def give_up(self, reasons: list[str]) -> NoReturn:
        """Raise what a rank says that has waited in vain."""
        waited = (
            f"rank {self.rank} waited {self.timeout_seconds:g} s to meet the others"
        )
        raise WireTimeout("; ".join([waited, *reasons]))


def _share_near(board: _Board, mine: _Near) -> list[_Near]:
    cards = board.share("address", asdict(mine))
    for peer, card in enumerate(cards):
        if card.get("version") != VERSION:
            raise RanksDiffer(
                f"rank {peer} meets by version {card.get('version')} of placet's "
                f"handshake, rank {board.rank} by {VERSION}: install the same placet "
                "on all hosts"
            )
    nears = [_Near(**card) for card in cards]
    for peer, near in enumerate(nears):
        both = near.memory_bytes and mine.memory_bytes and near.host == mine.host
        if both and near.memory_bytes != mine.memory_bytes:
            raise RanksDiffer(
                f"rank {peer} wants {near.memory_bytes} bytes of shared memory, rank "
                f"{board.rank} {mine.memory_bytes}: give the same memory_bytes"
            )
    return nears


def _share_far(
    board: _Board, address: Address, num_sockets: Mapping[int, int]
) -> dict[Caller, Address]:
    """The TCP connections that this rank has to make."""
    if bad := {peer: n for peer, n in num_sockets.items() if not 0 < n <= MOST_SOCKETS}:
        raise ValueError(
            f"num_sockets gives {bad} (rank: sockets): 1 to {MOST_SOCKETS} are possible"
        )
    counts = [num_sockets.get(peer, 0) for peer in range(board.num_ranks)]
    mine = _Far(address.place, address.port, counts)
    fars = [_Far(**card) for card in board.share("TCP address", asdict(mine))]
    for peer, num in num_sockets.items():
        if (theirs := fars[peer].num_sockets[board.rank]) != num:
            raise RanksDiffer(
                f"rank {peer} wants {theirs} sockets to rank {board.rank}, which wants "
                f"{num}: num_sockets must be equal on all ranks"
            )
    return {
        Caller(board.rank, peer, index, num): Address(fars[peer].place, fars[peer].port)
        for peer, num in num_sockets.items()
        if peer < board.rank
        for index in range(num)
    }


def _links(
    rank: int,
    state: Gathered,
    memory_bytes: Mapping[int, int],
    heartbeat_seconds: float,
) -> tuple[Link, ...]:
    links = []
    for peer in sorted({peer for peer, _ in state.proved}):
        proved = [
            state.proved[slot] for slot in sorted(state.proved) if slot[0] == peer
        ]
        if peer not in memory_bytes:  # on another host
            for one in proved:
                tune(one.sock, heartbeat_seconds)
        # A pair's memory is: what the lower rank sends, what the higher one sends.
        lower, higher = proved[0].memory or (-1, -1)
        send, receive = (lower, higher) if rank < peer else (higher, lower)
        sockets = tuple(one.sock for one in proved)
        keep_from_children(sockets)
        links.append(Link(peer, sockets, send, receive, memory_bytes.get(peer, 0)))
    return tuple(links)
