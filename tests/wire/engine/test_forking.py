"""A forked child does not keep its parent's connections open."""

import os
import signal
import socket

import pytest

from placet.wire.engine.forking import keep_from_children

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_peer_sees_the_end_though_a_child_lives_on():
    near, far = socket.socketpair()
    keep_from_children([near])
    copy = near.dup()
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(go, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        near.sendall(b"still the parent's")
        assert far.recv(100) == b"still the parent's"
        near.close()
        copy.close()
        far.settimeout(5)
        assert far.recv(1) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        far.close()
        os.close(ready)
        os.close(go)


def test_a_number_that_is_another_file_now_stays():
    read, write = os.pipe()
    near, far = socket.socketpair()
    keep_from_children([near])
    number = near.fileno()
    near.close()
    far.close()
    os.dup2(write, number)
    child = os.fork()
    if child == 0:
        os.write(number, b"x")
        os._exit(0)
    os.waitpid(child, 0)
    for end in (write, number):
        os.close(end)
    assert os.read(read, 1) == b"x"
    os.close(read)
