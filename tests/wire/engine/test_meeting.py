"""Ranks meet in one process; strangers, time-outs and mistakes do not stop them."""

import json
import mmap
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from placet.errors import RanksDiffer, WireTimeout
from placet.wire.engine import gathering, meeting
from placet.wire.engine.handshake import ANSWER, MAGIC, OPENING, Caller, call
from placet.wire.engine.listening import listen_near
from placet.wire.engine.meeting import Meeting
from tests.wire.engine.meeting_ranks import (
    MemoryStore,
    close,
    link,
    meet_all,
    meet_each,
    nothing_left_open,
)

HOSTS: dict[str, Callable[[int], dict[str, str]]] = {
    "one host": lambda rank: {"host": "host"},
    "a host each": lambda rank: {"host": f"host {rank}"},
    "two hosts": lambda rank: {"host": f"host {rank % 2}"},
}


def number(src: int, dst: int, index: int) -> bytes:
    """What `src` tells `dst` over their socket `index`: frames follow at once."""
    return bytes([src, dst, index]) * 100


def assert_all_linked(meetings: list[Meeting]) -> None:
    """Every pair has links whose sockets are joined to one another, in order."""
    ranks = range(len(meetings))
    for rank in ranks:
        assert [one.peer for one in meetings[rank].links] == [
            peer for peer in ranks if peer != rank
        ]
        for one in meetings[rank].links:
            for index, sock in enumerate(one.sockets):
                assert not sock.getblocking()
                sock.sendall(number(rank, one.peer, index))
    for rank in ranks:
        for one in meetings[rank].links:
            for index, sock in enumerate(one.sockets):
                sock.settimeout(10)
                expected = number(one.peer, rank, index)
                assert sock.recv(len(expected), socket.MSG_WAITALL) == expected


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6])
def test_all_pairs_are_linked(num_ranks: int, hosts: str):
    names = tuple(HOSTS[hosts](rank)["host"] for rank in range(num_ranks))
    with nothing_left_open():
        meetings = meet_all(
            num_ranks, each=HOSTS[hosts], share_memory=True, num_sockets=2
        )
        assert_all_linked(meetings)
        for rank, one in enumerate(meetings):
            assert one.hosts == names
            assert one.num_refused == 0
            for joined in one.links:
                near = names[rank] == names[joined.peer]
                family = socket.AF_UNIX if near else socket.AF_INET
                assert {sock.family for sock in joined.sockets} == {family}
                assert len(joined.sockets) == (1 if near else 2)
                assert (joined.send_memory >= 0) == near
        close(meetings)


def test_the_ranks_of_this_host_know_it():
    meetings = meet_all(2)
    assert len({name for one in meetings for name in one.hosts}) == 1
    assert {sock.family for sock in link(meetings[0], 1).sockets} == {socket.AF_UNIX}
    close(meetings)


def test_many_ranks_meet_at_once():
    started = time.monotonic()
    meetings = meet_all(24)
    assert time.monotonic() - started < 10  # 0.3 s when nothing else runs
    assert all(len(one.links) == 23 for one in meetings)
    close(meetings)


def test_each_pair_has_its_own_number_of_sockets():
    meetings = meet_all(
        3,
        each=lambda rank: {
            "host": f"host {rank}",
            "num_sockets": lambda peer: peer + rank,
        },
    )
    assert_all_linked(meetings)
    assert [len(one.sockets) for one in meetings[1].links] == [1, 3]
    close(meetings)


def test_memory_is_shared_both_ways_and_cannot_shrink():
    meetings = meet_all(3, share_memory=True, memory_bytes=8192)
    for rank, peer in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)):
        here, there = link(meetings[rank], peer), link(meetings[peer], rank)
        assert here.memory_bytes == there.memory_bytes == 8192
        with (
            mmap.mmap(here.send_memory, 8192) as sent,
            mmap.mmap(there.receive_memory, 8192) as received,
        ):
            sent[8189:8192] = bytes([rank, peer, 7])
            assert received[8189:8192] == bytes([rank, peer, 7])
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(there.receive_memory, 4096)
    assert mmap.mmap(link(meetings[0], 1).receive_memory, 8192)[8189:] == b"\1\0\7"
    close(meetings)


def test_memory_needs_both_to_want_it():
    meetings = meet_all(2, each=lambda rank: {"share_memory": rank == 0})
    for rank in range(2):
        one = link(meetings[rank], 1 - rank)
        assert (one.send_memory, one.receive_memory, one.memory_bytes) == (-1, -1, 0)
    close(meetings)


def test_without_memfd_all_goes_by_socket(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "memfd_create")
    meetings = meet_all(2, share_memory=True)
    assert link(meetings[0], 1).send_memory == -1
    close(meetings)


def test_a_socket_file_is_private_and_goes_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with listen_near(abstract=False) as (_, address):
        assert Path(address.place).is_socket()
        assert Path(address.place).parent.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(meeting, "listen_near", lambda: listen_near(abstract=False))
    meetings = meet_all(3, share_memory=True)
    assert_all_linked(meetings)
    assert list(tmp_path.iterdir()) == []
    close(meetings)


# Strangers


@contextmanager
def waiting_rank(
    host: str, **changes: float
) -> Iterator[tuple[MemoryStore, Callable[..., Meeting]]]:
    """Rank 0 of two waits; a function lets rank 1 come and gives what rank 0 has."""
    store = MemoryStore()
    # Rank 1 has said where it listens (it needs no listener here), so rank 0 begins to
    # let callers in.
    card = {"version": 1, "host": host, "place": "", "memory_bytes": 4096}
    store.set("address/1", json.dumps(card).encode())
    if host != "host 0":
        card = {"place": "127.0.0.1", "port": 1, "num_sockets": [1, 0]}
        store.set("TCP address/1", json.dumps(card).encode())

    def run(rank: int, name: str) -> Meeting:
        (met,) = meet_all(
            2, store=store, ranks=[rank], host=name, share_memory=True, **changes
        )
        return met

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, 0, "host 0")

        def come(joins: bool = True) -> Meeting:
            joined = [run(1, host)] if joins else []
            met = future.result(20)
            assert_all_linked([met, *joined])
            close(joined)
            return met

        yield store, come


def stranger(store: MemoryStore, host: str) -> socket.socket:
    """A connection to rank 0, as anyone could make it."""
    if host == "host 0":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(json.loads(store.get("address/0", 10))["place"])
    else:
        card = json.loads(store.get("TCP address/0", 10))
        assert card["place"] == "127.0.0.1"
        sock = socket.create_connection((card["place"], card["port"]))
    sock.settimeout(10)
    return sock


def hung_up(sock: socket.socket) -> bool:
    """Waits until the other side has closed; what it said before is dropped."""
    try:
        while sock.recv(100):
            pass
    except ConnectionResetError:
        pass
    return True


def says(data: bytes) -> Callable[[socket.socket], None]:
    return lambda sock: sock.sendall(data)


def hangs_up(sock: socket.socket) -> None:
    sock.close()


def proves_wrongly(sock: socket.socket) -> None:
    side = call(b"a guess", Caller(1, 0))
    sock.sendall(next(side).data)
    assert len(sock.recv(OPENING.size + ANSWER.size, socket.MSG_WAITALL)) > 10
    sock.sendall(secrets.token_bytes(32))


STRANGERS: dict[str, Callable[[socket.socket], None]] = {
    "another protocol": says(b"GET / HTTP/1.0\r\n\r\n"),
    "another version": says(OPENING.pack(MAGIC, 77)),
    "noise": says(secrets.token_bytes(100_000)),
    "a scanner": hangs_up,
    "a wrong proof": proves_wrongly,
    "silence": lambda sock: None,
    "half a hello": says(OPENING.pack(MAGIC, 1) + b"\1"),
}


@pytest.mark.parametrize("host", ["host 0", "host 1"])
def test_strangers_of_each_kind_are_dropped_and_counted(
    host: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gathering, "GRACE_SECONDS", 0.2)
    with nothing_left_open(), waiting_rank(host) as (store, come):
        socks = []
        for act in STRANGERS.values():
            socks.append(stranger(store, host))
            try:
                act(socks[-1])
            except ConnectionError:
                continue  # dropped before it had said all
        assert all(hung_up(sock) for sock in socks if sock.fileno() != -1)
        met = come()
        assert met.num_refused == len(STRANGERS)
        close([met])
        for sock in socks:
            sock.close()


def test_silent_strangers_do_not_delay_the_others():
    with waiting_rank("host 1") as (store, come):
        socks = [stranger(store, "host 1") for _ in range(40)]
        started = time.monotonic()
        close([come()])
        # One after the other would take 40 times GRACE_SECONDS.
        assert time.monotonic() - started < 2 * gathering.GRACE_SECONDS
        for sock in socks:
            sock.close()


def test_a_byte_now_and_then_gains_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gathering, "GRACE_SECONDS", 0.3)
    with waiting_rank("host 1") as (store, come):
        sock = stranger(store, "host 1")
        started, pause = time.monotonic(), threading.Event()
        hello = next(call(b"a guess", Caller(1, 0))).data
        for sent in range(len(hello)):
            try:
                sock.sendall(hello[sent : sent + 1])
            except ConnectionError:
                break
            pause.wait(0.05)
        assert sent < len(hello) - 1
        assert time.monotonic() - started < 2
        met = come()
        assert met.num_refused == 1
        close([met])
        sock.close()


def test_a_flood_of_callers_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gathering, "MOST_CALLERS", 5)
    monkeypatch.setattr(gathering, "GRACE_SECONDS", 60.0)  # so none is merely late
    with waiting_rank("host 1") as (store, come):
        socks = [stranger(store, "host 1") for _ in range(12)]
        assert all(hung_up(sock) for sock in socks[:7])
        met = come()
        assert met.num_refused >= 7
        close([met])
        for sock in socks:
            sock.close()


def test_a_false_listener_is_left_and_called_again():
    """Who took a rank's address learns no proof that would serve it."""
    store = MemoryStore()
    with (
        nothing_left_open(),
        socket.create_server(("127.0.0.1", 0)) as false,
        ThreadPoolExecutor(1) as pool,
    ):
        near = {"version": 1, "host": "host 0", "place": "", "memory_bytes": 0}
        far = {"place": "127.0.0.1", "port": false.getsockname()[1]}
        store.set("token", secrets.token_bytes(32))
        store.set("address/0", json.dumps(near).encode())
        store.set("TCP address/0", json.dumps({**far, "num_sockets": [0, 1]}).encode())
        future = pool.submit(
            meet_all, 2, store=store, ranks=[1], host="host 1", timeout_seconds=1
        )
        false.settimeout(10)
        for _ in range(2):
            with false.accept()[0] as sock:
                sock.settimeout(10)
                sock.sendall(OPENING.pack(MAGIC, 1) + secrets.token_bytes(ANSWER.size))
                assert hung_up(sock)
        false.close()
        expected = "no way to rank 0: .*(wrong proof from the listener|refused)"
        with pytest.raises(WireTimeout, match=expected):
            future.result(20)


def test_the_listener_is_closed_once_all_have_come():
    with waiting_rank("host 1") as (store, come):
        stranger(store, "host 1").close()
        close([come()])
        with pytest.raises(ConnectionRefusedError):
            stranger(store, "host 1")


# Time-outs and mistakes


def test_a_time_out_names_who_never_published():
    expected = (
        "rank 0 waited 0.2 s to meet the others; rank 1 never published its address; "
        "rank 3 never published its address"
    )
    with nothing_left_open(), pytest.raises(WireTimeout, match=expected):
        meet_all(4, ranks=[0, 2], timeout_seconds=0.2)


@pytest.mark.parametrize("hosts", ["one host", "a host each"])
def test_a_time_out_names_who_never_connected(
    hosts: str, monkeypatch: pytest.MonkeyPatch
):
    def gone(plan: gathering.Plan, until: float, state: gathering.Gathered) -> bool:
        if plan.rank == 2:
            raise InterruptedError("rank 2 ends after it has published its address")
        return gathering.gather(plan, until, state)

    monkeypatch.setattr(meeting, "gather", gone)
    with nothing_left_open():
        errors = meet_each(3, each=HOSTS[hosts], timeout_seconds=0.5, num_sockets=2)
    for rank in range(2):  # these two have met each other
        assert isinstance(errors[rank], WireTimeout)
        part = "" if hosts == "one host" else " (0 of 2 sockets)"
        assert errors[rank].args == (
            f"rank {rank} waited 0.5 s to meet the others; nothing from rank 2{part} "
            "(published its address, never connected)",
        )


@pytest.mark.parametrize("hosts", ["one host", "a host each"])
def test_a_time_out_names_whom_it_called_in_vain(
    hosts: str, monkeypatch: pytest.MonkeyPatch
):
    def gone(plan: gathering.Plan, until: float, state: gathering.Gathered) -> bool:
        if plan.rank == 0:
            raise InterruptedError("rank 0 ends after it has published its address")
        return gathering.gather(plan, until, state)

    monkeypatch.setattr(meeting, "gather", gone)
    with nothing_left_open():
        _, error = meet_each(2, each=HOSTS[hosts], timeout_seconds=0.3)
    assert isinstance(error, WireTimeout)
    assert "no way to rank 0: [Errno 111] Connection refused" in str(error)


def test_a_time_out_says_what_was_refused():
    with waiting_rank("host 1", timeout_seconds=0.4) as (store, come):
        with stranger(store, "host 1") as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert hung_up(sock)
        expected = "never connected.; refused 1 callers, the last: began with b'GET"
        with pytest.raises(WireTimeout, match=expected):
            come(joins=False)


def test_ranks_that_differ_say_so():
    def differ(**values: tuple[object, object]) -> list[Meeting | BaseException]:
        return meet_each(
            2,
            each=lambda rank: {name: two[rank] for name, two in values.items()},
            timeout_seconds=0.5,
        )

    with nothing_left_open():
        sizes = differ(memory_bytes=(4096, 8192), share_memory=(True, True))
        counts = differ(host=("a", "b"), num_sockets=(1, 3))
    assert all(isinstance(error, RanksDiffer) for error in (*sizes, *counts))
    assert "rank 1 wants 8192 bytes of shared memory, rank 0 4096" in str(sizes[0])
    assert "rank 0 wants 1 sockets to rank 1, which wants 3" in str(counts[1])


def test_another_version_is_an_error_at_once():
    store = MemoryStore()
    store.set("address/1", b'{"version": 7}')
    (error,) = meet_each(2, store=store, ranks=[0])
    assert isinstance(error, RanksDiffer)
    assert "rank 1 meets by version 7 of placet's handshake, rank 0 by 1" in str(error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_sockets": 0}, r"num_sockets gives \{0: 0\}.*: 1 to 64"),
        ({"num_sockets": 65}, r"num_sockets gives \{0: 65\}.*: 1 to 64"),
        ({"timeout_seconds": 0}, "timeout_seconds=0, memory_bytes=4096: both must"),
        ({"share_memory": True, "memory_bytes": 0}, "memory_bytes=0: both must"),
        ({"interface": "nonesuch0"}, "interface 'nonesuch0' has no .* this host has"),
        ({"interface": None}, "no interface is named .* GLOO_SOCKET_IFNAME"),
        (
            {"interface": None, "towards": "127.0.0.1"},
            "the way to '127.0.0.1' is the loopback address 127.0.0.1, which ranks on",
        ),
        ({"interface": None, "towards": "256.1.1.1"}, "no way to '256.1.1.1'"),
    ],
)
def test_wrong_arguments(change, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    store = MemoryStore()
    near = {"version": 1, "host": "elsewhere", "place": "", "memory_bytes": 0}
    store.set("address/0", json.dumps(near).encode())
    with nothing_left_open():
        (error,) = meet_each(2, store=store, ranks=[1], **change)
    assert isinstance(error, ValueError)
    assert error.args[0] is not None
    assert re.search(message, str(error))


def test_a_rank_beyond_the_last_is_refused():
    (error,) = meet_each(2, ranks=[2])
    assert isinstance(error, ValueError)
    assert "rank 2 of 2: ranks are 0 to 1" in str(error)


def test_the_interface_is_gloos_unless_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nonesuch0")
    meetings = meet_all(2, each=HOSTS["a host each"], interface=None)
    (sock,) = link(meetings[0], 1).sockets
    assert sock.getsockname()[0] == "127.0.0.1"
    close(meetings)
