"""The executor: fires the nodes of a program on one rank.

There is one executor for every program. Boxings fire by themselves or by hand, the
other nodes where the training reaches them:

    ready(tensor)   a compute node has made it, perhaps early; a boxing all of whose
                    inputs are ready is submitted at once, so it overlaps computation
    submit(node)    a boxing that is fired by hand (a gather before its block)
    wait(node)      takes a boxing's result and gives it to its `sink`
    run(node, fn)   calls fn and tells the observer; its inputs have been waited for

What a name stands for is bound beforehand: `bind(boxing, Binding(...))`. Boxings of
one queue are submitted in program order on every rank, because a wire that is not
order-free matches moves by their order.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from placet.boxing.execute import CarriesResult, Pending, start
from placet.boxing.ledger import Entry, Ledger
from placet.boxing.lowered import Lowered
from placet.boxing.plan import BoxingPlan, plan_boxing
from placet.placement.layout import Layout
from placet.program.node import Boxing
from placet.program.program import Program
from placet.run.events import NodeFired, Observer, ignore
from placet.torch_private.foreach import copy
from placet.wire.interface import Wire

T = TypeVar("T")


@dataclass(frozen=True)
class Binding:
    """What a boxing's tensors are on this rank.

    Args:
        source: gives its local inputs when it is submitted.
        sink: takes its local outputs when it is waited for.
        into: gives tensors that the outputs are to be written into.
        flat: gives the inputs as one flat buffer, in order, in which an all-reduce may
            run; then `source` is not asked and `sink` gets no tensors.
        consume: the first step may overwrite the inputs.
    """

    source: Callable[[], Sequence[Tensor]]
    sink: Callable[[Sequence[Tensor]], None]
    flat: Callable[[], Tensor] | None = None
    into: Callable[[], Sequence[Tensor]] | None = None
    consume: bool = False


class Executor:
    """Fires the nodes of one program on one rank; see the module."""

    def __init__(
        self,
        program: Program,
        wire: Wire,
        ledger: Ledger,
        observer: Observer = ignore,
    ) -> None:
        self.program = program
        self.wire = wire
        self.ledger = ledger
        self.observer = observer
        self.step = 0
        self._boxings = {
            b.name: _State(b, self._lower(program.boxing_plan(b)))
            for b in program.boxings()
        }
        self._outside: dict[object, _State] = {}
        self._queues: dict[str, deque[_State]] = {}
        self._readers: dict[str, list[_State]] = {}
        for state in self._boxings.values():
            for name in state.node.inputs:
                self._readers.setdefault(name, []).append(state)

    def bind(self, boxing: str, binding: Binding) -> None:
        """Say what a boxing's tensors are."""
        self._boxings[boxing].binding = binding

    def begin_step(self, step: int) -> None:
        """Forget what was ready; boxings still in flight stay so."""
        self.step = step
        self.rewind("grads")
        self.rewind("totals")

    def rewind(self, queue: str) -> None:
        """Let the boxings of a queue be fired again (once a micro-batch at level 2)."""
        states = [s for s in self._boxings.values() if s.node.queue == queue]
        for state in states:
            state.missing = len(state.node.inputs)
        self._queues[queue] = deque(states)

    def ready(self, tensor: str) -> None:
        """A compute node has made a tensor; submit the boxings this completes."""
        for state in self._readers.get(tensor, ()):
            state.missing -= 1
            queue = self._queues[state.node.queue]
            while queue and queue[0].missing <= 0:
                self._submit(queue.popleft())

    def submit(self, boxing: str) -> None:
        """Start a boxing now, unless it is already in flight."""
        state = self._boxings[boxing]
        if state.flight is None:
            self._submit(state)

    def in_flight(self, boxing: str) -> bool:
        """Whether a boxing was submitted and its result not yet taken."""
        return self._boxings[boxing].flight is not None

    def wait(self, boxing: str) -> None:
        """Take a boxing's result, if it is in flight, and hand it to its sink."""
        state = self._boxings[boxing]
        if state.flight is None:
            return
        flight, state.flight = state.flight, None
        binding = _bound(state)
        with self._timed(state.node.name, flight):
            binding.sink(self._finish(state, flight))

    def wait_queue(self, queue: str) -> None:
        """Take the results of every boxing of a queue, in program order."""
        for name, state in self._boxings.items():
            if state.node.queue == queue:
                self.wait(name)

    def run(self, node: str, lane: str, call: Callable[[], T]) -> T:
        """Fire a node that computes, and tell the observer."""
        began = time.monotonic()
        result = call()
        self.observer(NodeFired(self.step, node, lane, began, time.monotonic()))
        return result

    def box_now(self, name: str, tensor: Tensor, src: Layout, dst: Layout) -> Tensor:
        """Box one tensor and wait for it: a planned boxing, or one outside the program.

        The tensor's local shape must be its global one: src and dst are B or P.
        """
        return self.box_later(name, tensor, src, dst)()

    def box_later(
        self, name: str, tensor: Tensor, src: Layout, dst: Layout
    ) -> Callable[[], Tensor]:
        """As `box_now`, but let it travel; returns what waits for the result."""
        state = self._adhoc(name, tensor, src, dst)
        state.binding = Binding(lambda: (tensor,), in_place)
        self._submit(state)
        flight, state.flight = state.flight, None
        assert flight is not None

        def arrived() -> Tensor:
            with self._timed(name, flight):
                return self._finish(state, flight)[0]

        return arrived

    def _adhoc(self, name: str, tensor: Tensor, src: Layout, dst: Layout) -> "_State":
        """A boxing that the program does not have, kept for its next use."""
        planned = self._boxings.get(name)
        if planned is not None:
            spec = self.program.tensors[planned.node.inputs[0]]
            if (spec.shape, spec.dtype) == (tuple(tensor.shape), tensor.dtype):
                return planned
        key = (name, tuple(tensor.shape), tensor.dtype)
        state = self._outside.get(key)
        if state is None:
            shape, cluster = tuple(tensor.shape), self.program.cluster
            plan = plan_boxing((shape,), tensor.dtype, src, dst, cluster=cluster)
            state = _State(Boxing(name, (name,), (name,), src, dst), self._lower(plan))
            self._outside[key] = state
        return state

    def _lower(self, plan: BoxingPlan) -> tuple[Lowered, ...]:
        return plan.lowered(self.wire.rank)

    def _submit(self, state: "_State") -> None:
        node, binding = state.node, _bound(state)
        flight = _Flight(time.monotonic())
        steps = state.steps
        if binding.flat is not None:
            assert len(steps) == 1, (
                f"{node.name} cannot run in place in {len(steps)} steps"
            )
            move, buffer = steps[0].move, binding.flat()
            if move is not None and len(move.group) > 1:
                flight.flat = self.wire.submit(
                    move,
                    buffer,
                    key=self._key(state, 0),
                    priority=node.priority,
                    out=buffer,
                )
        elif steps:
            flight.pending = self._start(state, 0, binding.source())
        else:
            flight.tensors = binding.source()
        state.flight = flight

    def _start(self, state: "_State", index: int, tensors: Sequence[Tensor]) -> Pending:
        return start(
            state.steps[index],
            tensors,
            self.wire,
            key=self._key(state, index),
            priority=state.node.priority,
            consume=_bound(state).consume and index == 0,
        )

    def _key(self, state: "_State", index: int) -> str:
        # The same at each step: wires count how often a key was used, and keep each.
        return f"{state.node.name}.{index}"

    def _finish(self, state: "_State", flight: "_Flight") -> Sequence[Tensor]:
        """Wait for the first step, then run the others of a longer path."""
        steps = state.steps
        room = _bound(state).into
        if flight.tensors is not None:
            return _written(flight.tensors, room() if room else None)
        if flight.pending is None:
            if flight.flat is not None:
                flight.flat.wait()
                self._count(flight, steps[0], flight.flat)
            return ()
        pending = flight.pending
        tensors: Sequence[Tensor] = ()
        for index, lowered in enumerate(steps):
            if index:
                pending = self._start(state, index, tensors)
            is_last = index == len(steps) - 1
            tensors = pending.finish(room() if room and is_last else None)
            self._count(flight, lowered, pending.future)
        return tensors

    def _count(
        self, flight: "_Flight", lowered: Lowered, future: CarriesResult | None
    ) -> None:
        if lowered.move is None or future is None:
            return
        traffic = future.traffic()
        rank = self.wire.rank
        flight.predicted_sent_bytes += lowered.move.sent_bytes(rank)
        flight.predicted_received_bytes += lowered.move.received_bytes(rank)
        flight.sent_bytes += traffic.sent_bytes
        flight.received_bytes += traffic.received_bytes

    @contextmanager
    def _timed(self, name: str, flight: "_Flight") -> Iterator[None]:
        """Account for a boxing: a ledger entry and a word to the observer."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self.ledger.record(
            Entry(
                name,
                self.step,
                flight.predicted_sent_bytes,
                flight.predicted_received_bytes,
                flight.sent_bytes,
                flight.received_bytes,
                flight.start_seconds,
                ended,
            )
        )
        self.observer(
            NodeFired(
                self.step,
                name,
                Boxing.lane,
                flight.start_seconds,
                ended,
                ended - began,
                flight.sent_bytes,
                flight.received_bytes,
                flight.predicted_sent_bytes,
                flight.predicted_received_bytes,
            )
        )


@dataclass
class _Flight:
    """A boxing on its way."""

    start_seconds: float
    pending: Pending | None = None
    flat: CarriesResult | None = None
    tensors: Sequence[Tensor] | None = None
    predicted_sent_bytes: int = 0
    predicted_received_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass
class _State:
    """One boxing node as it runs."""

    node: Boxing
    steps: tuple[Lowered, ...]
    binding: Binding | None = None
    missing: int = 0
    flight: _Flight | None = None


def _written(
    tensors: Sequence[Tensor], into: Sequence[Tensor] | None
) -> Sequence[Tensor]:
    """What a boxing without steps gives: its inputs, copied if there is a place."""
    if into is None:
        return tensors
    copy(into, tensors)
    return into


def in_place(_: Sequence[Tensor]) -> None:
    """The sink of a boxing whose outputs are where they belong when it ends."""


def _bound(state: _State) -> Binding:
    if state.binding is None:
        raise ValueError(f"boxing {state.node.name!r} is not bound to tensors")
    return state.binding
