"""Peak memory of a step on one rank, before it runs.

    peak = max over time of the storages that are alive:
        states       parameters and buffers, this rank's parts
        optimizer    what it keeps for them
        batch        whole, as every rank is given it
        activations  what operators make; views share storage
        gradients    and new values of buffers
        boxings      payloads and arrivals
        random       numbers while they are drawn, and the table that they come from

The step is walked as `placet.run.planned` runs it, with this rank's calls, on tensors
without memory (the meta device): the same operators give the same views and temporaries
of our own functions, and boxings pack and unpack by the same code. An arrival counts
from the submission on, although some wires make it later. What kernels take for
themselves counts as activations.

Order of the walk and what it lets go     -> placet.program.lifetimes
What kernels take for themselves          -> placet.program.workspace
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from placet.boxing.lowered import Lowered
from placet.boxing.moves import AllReduce
from placet.boxing.packing import pack, unpack
from placet.placement.layout import Layout, part_box, relative
from placet.program.division import Division
from placet.program.graph import Graph, Op
from placet.program.lifetimes import awaited, in_place, last_reads
from placet.program.node import Boxing, Compute
from placet.program.refine import Refined
from placet.program.rules.table import localize
from placet.program.signature import Call, Parts, Slot, layouts_of, operator_of
from placet.program.workspace import workspace_bytes
from placet.torch_private.dispatch import OpOverload, argument_names, storage_key
from placet.torch_private.storages import LiveStorages

STATES, OPTIMIZER, BATCH = "states", "optimizer", "batch"
ACTIVATIONS, GRADIENTS, BOXINGS = "activations", "gradients", "boxings"

RANDOM = "random numbers"

_META = torch.device("meta")
_TABLE_BYTES = 4 << 16
"""Keyed random numbers are drawn from a table of this size, a block of it at a time."""


@dataclass(frozen=True)
class Peak:
    """The most memory that a step holds at once on a rank.

    Args:
        num_bytes: all of it.
        node: where that is: a node of the program, and the operator in it.
        by_category: the bytes' use then; see the module.
    """

    num_bytes: int
    node: str
    by_category: Mapping[str, int]


def peak_bytes(
    graph: Graph,
    division: Division,
    refined: Refined,
    rank: int,
    *,
    state_bytes_per_parameter_byte: float = 0.0,
    update_bytes_per_parameter_byte: float = 0.0,
    with_workspaces: bool = True,
) -> Peak:
    """The peak of a step's memory on one rank.

    Args:
        graph, division, refined: what runs.
        rank: whose parts.
        state_bytes_per_parameter_byte: what the optimizer keeps of each trained
            parameter (Adam: 2, momentum: 1).
        update_bytes_per_parameter_byte: what its step needs for a while.
        with_workspaces: count what kernels take for themselves.
    """
    with LiveStorages() as watch, torch.no_grad():
        walk = _Walk(graph, division, refined, rank, watch)
        walk.with_workspaces = with_workspaces
        trained = sum(
            walk.values[s.tensor].nbytes
            for s in graph.states
            if s.is_parameter and s.new is not None
        )
        watch.add(OPTIMIZER, round(state_bytes_per_parameter_byte * trained))
        walk.run()
        watch.place = "update"
        watch.add(OPTIMIZER, round(update_bytes_per_parameter_byte * trained))
    live = {name: size for name, size in watch.peak_live.items() if size}
    return Peak(watch.peak_bytes, watch.peak_place, live)


@dataclass(frozen=True)
class _Flight:
    """A boxing on its way."""

    lowered: Lowered
    tensors: tuple[Tensor, ...]
    payload: Tensor | None
    arrival: Tensor | None


class _Walk:
    """One step without numbers."""

    def __init__(
        self,
        graph: Graph,
        division: Division,
        refined: Refined,
        rank: int,
        watch: LiveStorages,
    ) -> None:
        self.graph, self.division, self.refined = graph, division, refined
        self.rank, self.watch = rank, watch
        self.ops = {op.name: op for op in graph.ops}
        self.news = {s.new for s in graph.states}
        self.values: dict[str, Tensor] = {}
        self.flights: dict[str, _Flight] = {}
        self.draws = False
        self.with_workspaces = True
        self.boxings = {b.name: b for b in refined.program.boxings()}
        self.in_place = in_place(graph, refined)
        watch.category = STATES
        for state in graph.states:
            self.values[state.tensor] = self._part(
                state.tensor, division.homes[state.name]
            )
        watch.category = BATCH
        whole = {name: self._empty(name) for name in graph.inputs}
        self.whole = whole  # the caller of a step holds it
        for name, (tensor, layout) in refined.batch.items():
            box = part_box(tuple(whole[tensor].shape), layout, rank)
            full = tuple((0, size) for size in whole[tensor].shape)
            self.values[name] = whole[tensor][relative(box, full)]

    def run(self) -> None:
        """All nodes, in order."""
        nodes = self.refined.program.nodes
        last = last_reads(nodes)
        for index, waited in enumerate(awaited(nodes)):
            node = nodes[index]
            self.watch.place = node.name
            for name in waited:
                self._arrive(self.boxings[name])
            if isinstance(node, Compute):
                self._compute(node, last[index])
            elif isinstance(node, Boxing):
                self._depart(node)
            for name in last[index]:
                self.values.pop(name, None)

    def _empty(self, name: str) -> Tensor:
        meta = self.graph.tensors[name]
        return torch.empty(meta.shape, dtype=meta.dtype, device=_META)

    def _part(self, name: str, layout: Layout) -> Tensor:
        meta = self.graph.tensors[name]
        box = part_box(meta.shape, layout, self.rank)
        shape = [stop - start for start, stop in box]
        return torch.empty(shape, dtype=meta.dtype, device=_META)

    def _compute(self, node: Compute, dropped: Sequence[str]) -> None:
        """A segment, which frees its inputs and what it makes after their last use."""
        self.watch.category = ACTIVATIONS
        body = [self.ops[name] for name in self.refined.bodies[node.name]]
        reads = self.refined.wiring.reads
        inputs = [[reads[op.name, i] for i in range(len(op.inputs))] for op in body]
        left = Counter(name for names in inputs for name in names)
        left.update(node.outputs)
        local = {name: self.values[name] for name in node.inputs}
        for name in dropped:
            self.values.pop(name, None)
        for op, names in zip(body, inputs, strict=True):
            self.watch.place = f"{node.name}: {op.name}"
            made = self._call(op, [local[name] for name in names])
            for output, tensor in zip(op.outputs, made, strict=True):
                if output is not None and left[output]:
                    local[output] = tensor
                    if output in self.news:
                        self.watch.move(tensor, GRADIENTS, only=ACTIVATIONS)
            del made, tensor
            left.subtract(names)
            for name in names:
                if not left[name]:
                    local.pop(name, None)
        self.values.update({name: local[name] for name in node.outputs})

    def _call(self, op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """A rank's call of an operator."""
        mesh, picked = self.division.mesh, self.division.signatures[op.name]
        parts = Parts(*layouts_of(mesh, picked), self.rank)
        call = localize(operator_of(op, self.graph), parts)
        made = call.target(*_filled(call.args, inputs), **_options(call, inputs))
        found = tuple(made) if op.returns_tuple else (made,)
        if self.with_workspaces:
            tensors = [t for t in found if isinstance(t, Tensor)]
            self._for_a_while(
                ACTIVATIONS, workspace_bytes(call.target, inputs, tensors)
            )
        if call.random_box is not None:
            self._draw(found)
        return tuple(t.to(_META) if isinstance(t, Tensor) else t for t in found)

    def _draw(self, made: Sequence[Tensor]) -> None:
        """The memory that keyed random numbers need besides; see `_TABLE_BYTES`."""
        self.watch.add(RANDOM, 0 if self.draws else _TABLE_BYTES)
        self.draws = True
        numbers = made[0].numel()
        flat = sum(tensor.nbytes for tensor in made)
        spare = flat + min(2 * 4 * numbers, 2 * _TABLE_BYTES)
        self._for_a_while(RANDOM, spare)

    def _for_a_while(self, category: str, num_bytes: int) -> None:
        self.watch.add(category, num_bytes)
        self.watch.add(category, -num_bytes)

    def _depart(self, node: Boxing) -> None:
        """Pack a boxing's payload, and make room for what it brings."""
        self.watch.category = BOXINGS
        tensors = tuple(self.values[name] for name in node.inputs)
        plan = self.refined.program.boxing_plan(node)
        (lowered,) = plan.lowered(self.rank)
        if lowered.move is None:
            self.flights[node.name] = _Flight(lowered, tensors, None, None)
            return
        payload, _ = pack(lowered, tensors, _META)
        may_overwrite = node.name in self.in_place or not _share(payload, tensors)
        arrival: Tensor | None = payload
        if not isinstance(lowered.move, AllReduce) or not may_overwrite:
            size = sum(lowered.recipe.arrival_sizes)
            arrival = torch.empty(size, dtype=lowered.dtype, device=_META)
        held = tensors if any(lowered.recipe.keeps) else ()
        self.flights[node.name] = _Flight(lowered, held, payload, arrival)

    def _arrive(self, node: Boxing) -> None:
        """Unpack what a boxing has brought."""
        self.watch.category = BOXINGS
        flight = self.flights.pop(node.name)
        arrival = None if flight.arrival is None else flight.arrival.view(-1)
        outs = unpack(flight.lowered, flight.tensors, arrival, _META)
        for name, tensor in zip(node.outputs, outs, strict=True):
            self.values[name] = tensor
            if self.refined.wiring.steps[name].tensor in self.news:
                self.watch.move(tensor, GRADIENTS, only=BOXINGS)


def _share(payload: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a payload is no copy."""
    mine = {storage_key(tensor.untyped_storage()) for tensor in tensors}
    return storage_key(payload.untyped_storage()) in mine


def _filled(value: Any, inputs: Sequence[Tensor]) -> Any:
    if isinstance(value, Slot):
        return inputs[value.index]
    if isinstance(value, torch.device):
        return _META
    if isinstance(value, tuple):
        return tuple(_filled(item, inputs) for item in value)
    return value


def _options(call: Call, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """A call's keywords; what makes tensors from nothing makes them without memory."""
    found = {name: _filled(value, inputs) for name, value in call.kwargs}
    if not inputs and _takes_device(call.target):
        found["device"] = _META
    return found


def _takes_device(target: Callable[..., Any]) -> bool:
    return isinstance(target, OpOverload) and "device" in argument_names(target)
