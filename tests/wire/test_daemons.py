"""Daemon threads touch nothing once the interpreter ends."""

import subprocess
import sys
import threading

import pytest

from placet.wire.daemons import Gate

PROGRAM = """
import torch
from placet.boxing.moves import AllReduce
from testing.engine_ranks import wires

move = AllReduce((0, 1), 1 << 18, torch.float32)
for wire in wires(2) * 40:
    wire.submit(move, torch.ones(1 << 18), key="k")
"""


def test_closed_gate_waits_for_who_is_inside_and_stops_who_comes():
    gate, inside, leave, done = Gate(), *(threading.Event() for _ in range(3))

    def work():
        with gate:
            inside.set()
            leave.wait(5)
        with gate:
            done.set()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    assert inside.wait(5)
    assert not gate.close(0.01)
    leave.set()
    assert gate.close(5)
    assert not done.wait(0.05)
    assert worker.is_alive()


@pytest.mark.procs
def test_interpreter_ends_well_with_moves_in_flight():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
