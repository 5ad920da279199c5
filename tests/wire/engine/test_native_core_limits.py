"""What only the native core can get wrong: signals, descriptors, memory, its table."""

import contextlib
import gc
import os
import signal
import time
from dataclasses import replace
from threading import Event as Flag
from threading import Thread

import pytest
import torch

from placet.wire.engine.core import EventKind, Link, State
from placet.wire.engine.frames import EARLY_BYTES, FrameKind, Header, pack
from placet.wire.engine.native.core import NativeCore
from tests.wire.engine.core_rig import (
    beside_raw,
    event_of,
    receiving,
    schedule_of,
    socket_pairs,
    submit,
    sum_of_all,
)
from tests.wire.engine.test_native_core import OverRings


def test_signals_do_not_shorten_a_wait():
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    over = Flag()

    def pester() -> None:
        while not over.wait(0.005):
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = Thread(target=pester)
    out = torch.zeros(8, dtype=torch.uint8)
    try:
        with beside_raw(NativeCore) as (core, _):
            handle = submit(core, 1, schedule_of(receiving(1, 8)), out)
            thread.start()
            began = time.monotonic()
            assert core.wait(handle, 0.5) is State.PENDING
            assert time.monotonic() - began >= 0.5
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_closed_core_holds_no_sockets_and_no_memory():
    gc.collect()
    before, mapped = len(os.listdir("/proc/self/fd")), num_rings_mapped()
    ours, theirs = socket_pairs(1)
    make = OverRings()
    cores = [make(0, [Link(1, ours)]), make(1, [Link(0, theirs)])]
    assert num_rings_mapped() > mapped
    for core in cores:
        core.close()
    assert num_rings_mapped() == mapped
    # An epoll and its bell stay until the object goes: a thread may be inside.
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    del core, cores
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def num_rings_mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:ring" in line for line in maps)


def test_peer_that_says_ready_without_end_is_cut_off():
    with beside_raw(NativeCore) as (core, raw):
        for collective in range(EARLY_BYTES // 1024):  # twice what may be set aside
            ready = pack(Header(FrameKind.READY, 0, collective, 7))
            with contextlib.suppress(ConnectionError):
                raw.sockets[0].sendall(ready * 1024)
        event = event_of(core, EventKind.LOST)
        assert b"before READY" in event.data


def test_dtype_that_cannot_be_reduced_is_refused():
    payload = torch.zeros(8, dtype=torch.uint8)
    unknown = replace(sum_of_all(0, (0, 1), payload), dtype_name="torch.float8_e4m3fn")
    with (
        beside_raw(NativeCore) as (core, _),
        pytest.raises(ValueError, match=r"cannot reduce torch\.float8"),
    ):
        submit(core, 1, unknown, payload)
