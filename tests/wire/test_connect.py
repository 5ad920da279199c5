"""Workers connect by torchrun's environment, or are told what is wrong."""

import os
import socket

import pytest
import torch.distributed as dist

from placet.errors import WireError, WireTimeout
from placet.wire.connect import connect, disconnect
from placet.wire.engine.wire import EngineWire
from testing.processes import collect, start_rank
from tests.wire.conformance import check_moves

pytestmark = pytest.mark.procs


def test_connect_needs_torchruns_environment(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="needs RANK, WORLD_SIZE"):
        connect()


def connect_as(rank, num_ranks, port, seconds):
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    wire = connect(timeout_seconds=seconds)
    assert isinstance(wire, EngineWire)
    check_moves(wire, "cpu")
    disconnect(wire)
    assert not dist.is_initialized()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_connected(num_ranks, num_started, port, seconds=20):
    return [
        start_rank(rank, connect_as, rank, num_ranks, port, seconds)
        for rank in range(num_started)
    ]


def test_connect_from_torchruns_environment():
    outcomes = collect(start_connected(2, 2, free_port()), 60)
    assert [outcomes[rank].failure for rank in range(2)] == [None, None]


def test_connect_says_that_the_port_is_in_use():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failure = collect(start_connected(2, 1, port), 60)[0].failure
    assert isinstance(failure.error, WireError)
    assert f"port in use: rank 0 cannot listen on 127.0.0.1:{port}" in failure.text


def test_connect_says_that_not_all_ranks_came():
    failure = collect(start_connected(2, 1, free_port(), seconds=1), 60)[0].failure
    assert isinstance(failure.error, WireTimeout)
    assert "not all 2 ranks came within 1 s" in failure.text
