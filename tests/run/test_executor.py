"""The executor fires boxings when their inputs are there, in one order on all ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from placet.boxing.ledger import Ledger
from placet.boxing.moves import Move
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.program.node import Boxing, Compute, TensorSpec
from placet.program.program import Program
from placet.program.verify import verify
from placet.run.events import NodeFired
from placet.run.executor import Binding, Executor
from placet.wire.interface import Future, Wire
from testing.ranks import run_threads


def reductions(num_ranks: int, queues: dict[str, str]) -> Program:
    """Boxings P(sum) -> B of one vector each, by name and queue."""
    mesh = Mesh(f"data={num_ranks}")
    src, dst = Layout(mesh, [P()]), Layout(mesh, [B])
    tensors, boxings = {}, []
    for name, queue in queues.items():
        tensors[name] = TensorSpec((3,), torch.float64, src)
        tensors[f"{name}.sum"] = TensorSpec((3,), torch.float64, dst)
        boxings.append(
            Boxing(f"box.{name}", (name,), (f"{name}.sum",), src, dst, queue=queue)
        )
    work = Compute("work", (), tuple(queues), early=tuple(queues))
    return verify(Program("test", mesh, tensors, (work, *boxings), ()))


class Spy(Wire):
    """A wire that writes down the keys it is given."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.rank, self.num_ranks = wire.rank, wire.num_ranks
        self.capabilities = wire.capabilities
        self.keys: list[str] = []

    def submit(self, move: Move, payload: Tensor, **options: Any) -> Future:
        self.keys.append(options["key"])
        return self.wire.submit(move, payload, **options)

    def prepare(self, groups: Any) -> None:
        self.wire.prepare(groups)

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        return self.wire.exchange(value, key=key)

    def control_bytes(self) -> int:
        return self.wire.control_bytes()

    def close(self) -> None:
        self.wire.close()


def started(wire: Wire, queues: dict[str, str]) -> tuple[Executor, dict[str, Tensor]]:
    """An executor whose boxings take `rank + 1` and leave sums in a dict."""
    executor = Executor(reductions(wire.num_ranks, queues), wire, Ledger())
    sums: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[Any], None]:
        return lambda tensors: sums.update({name: tensors[0].clone()})

    def source() -> list[Tensor]:
        return [torch.full((3,), wire.rank + 1.0, dtype=torch.float64)]

    for name in queues:
        executor.bind(f"box.{name}", Binding(source, keep(name)))
    executor.begin_step(1)
    return executor, sums


def test_boxings_of_a_queue_go_in_program_order() -> None:
    def run(wire: Wire) -> list[str]:
        spy = Spy(wire)
        executor, sums = started(spy, {"a": "grads", "b": "grads", "c": "grads"})
        order = ("c", "a", "b") if wire.rank else ("b", "c", "a")
        for count, name in enumerate(order):
            executor.ready(name)
            if "a" not in order[: count + 1]:
                assert not spy.keys, "a waits, and so all behind it"
        executor.wait_queue("grads")
        assert sorted(sums) == ["a", "b", "c"]
        assert all(t.tolist() == [3.0, 3.0, 3.0] for t in sums.values())
        assert len(executor.ledger.entries) == 3
        assert not executor.ledger.mismatched
        return spy.keys

    first, second = run_threads(2, run)
    assert first == second
    assert [key.split(".")[1] for key in first] == ["a", "b", "c"]


def test_queues_do_not_wait_for_one_another() -> None:
    def run(wire: Wire) -> None:
        executor, sums = started(wire, {"a": "grads", "b": "totals"})
        executor.ready("b")
        executor.wait("box.b")
        assert list(sums) == ["b"]
        executor.ready("a")
        executor.wait("box.a")
        assert list(sums) == ["b", "a"]

    run_threads(2, run)


def test_a_boxing_in_flight_is_not_submitted_again() -> None:
    def run(wire: Wire) -> int:
        spy = Spy(wire)
        executor, sums = started(spy, {"a": "params"})
        executor.wait("box.a")
        assert not sums, "nothing was on its way"
        executor.submit("box.a")
        executor.submit("box.a")
        assert executor.in_flight("box.a")
        executor.wait("box.a")
        assert not executor.in_flight("box.a")
        executor.submit("box.a")
        executor.wait_queue("params")
        assert set(spy.keys) == {"box.a.0"}, "wires keep each key for ever"
        return len(spy.keys)

    assert run_threads(2, run) == [2, 2]


def test_a_queue_can_be_fired_again() -> None:
    def run(wire: Wire) -> int:
        executor, sums = started(wire, {"a": "grads", "b": "grads"})
        for _ in range(3):
            executor.rewind("grads")
            executor.ready("a")
            executor.ready("b")
            executor.wait_queue("grads")
        assert set(sums) == {"a", "b"}
        return len(executor.ledger.entries)

    assert run_threads(2, run) == [6, 6]


def test_box_now_serves_planned_and_other_tensors() -> None:
    def run(wire: Wire) -> list[list[float]]:
        executor, _ = started(wire, {"a": "grads"})
        layouts = executor.program.boxings()[0]
        found = []
        for size in (3, 5, 3):
            tensor = torch.full((size,), wire.rank + 1.0, dtype=torch.float64)
            total = executor.box_now("box.a", tensor, layouts.src, layouts.dst)
            found.append(total.tolist())
        assert [e.boxing for e in executor.ledger.entries] == ["box.a"] * 3
        return found

    for found in run_threads(3, run):
        assert found == [[6.0] * 3, [6.0] * 5, [6.0] * 3]


def test_an_unbound_boxing_is_an_error() -> None:
    def run(wire: Wire) -> None:
        executor = Executor(reductions(1, {"a": "grads"}), wire, Ledger())
        executor.begin_step(1)
        with pytest.raises(ValueError, match=r"'box\.a' is not bound"):
            executor.ready("a")

    run_threads(1, run)


def test_nodes_are_told_to_the_observer() -> None:
    def run(wire: Wire) -> list[NodeFired]:
        fired: list[NodeFired] = []
        executor, _ = started(wire, {"a": "grads"})
        executor.observer = fired.append
        assert executor.run("update", "update", lambda: 7) == 7
        executor.ready("a")
        executor.wait_queue("grads")
        return fired

    for update, move in run_threads(2, run):
        assert (update.name, update.lane, update.step) == ("update", "update", 1)
        assert (move.name, move.lane) == ("box.a", "move")
        assert move.start_seconds <= move.end_seconds
        assert move.sent_bytes == move.predicted_sent_bytes == 24
        assert move.received_bytes == move.predicted_received_bytes == 24


def test_uneven_parts_are_gathered() -> None:
    def run(wire: Wire) -> list[float]:
        mesh = Mesh("data=3")
        src, dst = Layout(mesh, [S(0)]), Layout(mesh, [B])
        tensors = {
            "part": TensorSpec((4,), torch.float64, src),
            "whole": TensorSpec((4,), torch.float64, dst),
        }
        boxing = Boxing("gather", ("part",), ("whole",), src, dst, queue="params")
        program = verify(Program("test", mesh, tensors, (boxing,), ("part",)))
        executor = Executor(program, wire, Ledger())
        mine = torch.arange(4.0, dtype=torch.float64)[2 * wire.rank : 2 * wire.rank + 2]
        got: list[Tensor] = []
        executor.bind("gather", Binding(lambda: [mine], got.extend))
        executor.submit("gather")
        executor.wait("gather")
        sent, received = executor.ledger.end_step()
        assert sent == program.sent_bytes(wire.rank)
        assert received == program.received_bytes(wire.rank)
        return got[0].tolist()

    assert run_threads(3, run) == [[0.0, 1.0, 2.0, 3.0]] * 3
