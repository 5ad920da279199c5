"""Peak memory of a step on one rank, before it runs.

    peak = max over time of the storages that are alive:
        parameters, buffers    this rank's parts
        optimizer state        what it keeps for them
        batch                  whole, as every rank is given it
        activations            what operators make; views share storage
        gradients              and new values of buffers
        gathered weights       what boxings bring of parameters, while it is read
        boxings in flight      payloads and arrivals of all others
        workspace              what a call takes for itself, and the optimizer's step
        random numbers         while they are drawn, and the table that they come from

The step is walked as `placet.run.planned` runs it, with this rank's calls. An arrival
counts from the submission on, although some wires make it later.

Order of the walk and what it lets go     -> placet.program.lifetimes
What a call or boxing makes and takes     -> placet.program.local_effects
What is added up                          -> placet.program.account
On which ranks it differs                 -> placet.program.rank_classes
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from placet.placement.layout import local_shape
from placet.program.account import (
    ACTIVATIONS,
    BATCH,
    BOXINGS,
    BUFFERS,
    GATHERED,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    RANDOM,
    WORKSPACE,
    Account,
    Storage,
)
from placet.program.division import Division
from placet.program.effects import Effect, Form, dense
from placet.program.graph import Graph, Op
from placet.program.lifetimes import awaited, in_place, last_reads
from placet.program.local_effects import (
    Change,
    arrival,
    call_effect,
    departure,
    wire_bytes,
)
from placet.program.node import Boxing, Compute
from placet.program.refine import PARAMS, Refined
from placet.program.signature import operator_of, target_name

UPDATE = "update"
"""The node at which the optimizer steps."""

SMALL_BYTES = 16
"""Counts and scalars: the optimizer's of each parameter, the step's."""

_TABLE_BYTES = 4 << 16
"""Keyed random numbers are drawn from a table of this size, a block of it at a time."""


@dataclass(frozen=True)
class Peak:
    """The most memory that a step holds at once on a rank.

    Args:
        num_bytes: all of it.
        node: where that is: a node of the program, and the operator in it.
        where: the same for people: what the operator computes, and its module.
        by_category: the bytes' use then; see the module.
    """

    num_bytes: int
    node: str
    where: str
    by_category: Mapping[str, int]


@dataclass(frozen=True)
class Kept:
    """What the optimizer has in memory, in bytes per byte of a parameter that trains.

    Args:
        state: always, of every one (Adam: 2, momentum: 1).
        update: while it steps on one, of that one.
        left: then still, of the one before.
    """

    state: float = 0.0
    update: float = 0.0
    left: float = 0.0


def peak_bytes(
    graph: Graph,
    division: Division,
    refined: Refined,
    rank: int,
    *,
    kept: Kept = Kept(),
    with_workspaces: bool = True,
) -> Peak:
    """The peak of a step's memory on one rank.

    Args:
        graph, division, refined: what runs.
        rank: whose parts.
        kept: what the optimizer keeps.
        with_workspaces: count what kernels take for themselves.
    """
    walk = _Walk(graph, division, refined, rank)
    walk.with_workspaces = with_workspaces
    trained = [
        walk.values[s.tensor].form.num_bytes
        for s in graph.states
        if s.is_parameter and s.new is not None
    ]
    account = walk.account
    account.add(OPTIMIZER, round(kept.state * sum(trained)))
    account.add(WORKSPACE, SMALL_BYTES * (1 + len(trained)) if with_workspaces else 0)
    walk.run()
    account.place = UPDATE
    for before, size in pairwise((0, *trained)):
        account.pass_by(WORKSPACE, round(kept.left * before + kept.update * size))
    live = {name: size for name, size in account.peak_live.items() if size}
    node, _, name = account.peak_place.partition(": ")
    where = _where(walk.ops[name]) if name else node
    return Peak(account.peak_bytes, account.peak_place, where, live)


def _where(op: Op) -> str:
    return f"{target_name(op.target)} in the {op.phase} of {op.module or 'the model'}"


@dataclass(frozen=True)
class _Held:
    """A rank's tensor."""

    storage: Storage
    form: Form


@dataclass(frozen=True)
class _Flight:
    """A boxing on its way: what is held until it is waited for, and then unpacked."""

    sent: tuple[_Held | Storage | None, ...]
    tensors: tuple[_Held, ...]
    arrival: _Held | None


class _Walk:
    """One step without numbers."""

    def __init__(
        self, graph: Graph, division: Division, refined: Refined, rank: int
    ) -> None:
        self.graph, self.division, self.refined = graph, division, refined
        self.rank, self.account = rank, Account()
        self.ops = {op.name: op for op in graph.ops}
        self.news = {s.new for s in graph.states}
        self.values: dict[str, _Held] = {}
        self.flights: dict[str, _Flight] = {}
        self.scratch: dict[Change, int] = {}
        self.draws = False
        self.with_workspaces = True
        self.boxings = {b.name: b for b in refined.program.boxings()}
        self.in_place = in_place(graph, refined)
        for state in graph.states:
            meta = graph.tensors[state.tensor]
            shape = local_shape(meta.shape, division.homes[state.name], rank)
            category = PARAMETERS if state.is_parameter else BUFFERS
            self.values[state.tensor] = self._new(category, dense(shape, meta.dtype))
        # The caller of a step holds the states and the whole batch.
        self.states = tuple(self.values.values())
        metas = {name: graph.tensors[name] for name in graph.inputs}
        self.whole = {
            name: self._new(BATCH, dense(meta.shape, meta.dtype))
            for name, meta in metas.items()
        }
        for name, (tensor, layout) in refined.batch.items():
            whole = self.whole[tensor]
            part = local_shape(whole.form.shape, layout, rank)
            self.values[name] = _Held(whole.storage, whole.form.part(part))

    def run(self) -> None:
        """All nodes, in order."""
        nodes = self.refined.program.nodes
        last = last_reads(nodes)
        for index, waited in enumerate(awaited(nodes)):
            node = nodes[index]
            self.account.place = node.name
            for name in waited:
                self._arrive(self.boxings[name])
            if isinstance(node, Compute):
                self._compute(node, last[index])
            elif isinstance(node, Boxing):
                self._depart(node)
            for name in last[index]:
                self.values.pop(name, None)

    def _new(self, category: str, form: Form) -> _Held:
        return _Held(Storage(self.account, category, form.num_bytes), form)

    def _compute(self, node: Compute, dropped: Sequence[str]) -> None:
        """A segment, which frees its inputs and what it makes after their last use."""
        body = [self.ops[name] for name in self.refined.bodies[node.name]]
        reads = self.refined.wiring.reads
        inputs = [[reads[op.name, i] for i in range(len(op.inputs))] for op in body]
        left = Counter(name for names in inputs for name in names)
        left.update(node.outputs)
        local = {name: self.values[name] for name in node.inputs}
        for name in dropped:
            self.values.pop(name, None)
        for op, names in zip(body, inputs, strict=True):
            self.account.place = f"{node.name}: {op.name}"
            made = self._call(op, [local[name] for name in names])
            for output, held in zip(op.outputs, made, strict=True):
                if output is not None and left[output]:
                    assert held is not None
                    local[output] = held
                    if output in self.news and held.storage.category == ACTIVATIONS:
                        held.storage.become(GRADIENTS)
            del made, held
            left.subtract(names)
            for name in names:
                if not left[name]:
                    local.pop(name, None)
        self.values.update({name: local[name] for name in node.outputs})

    def _call(self, op: Op, inputs: Sequence[_Held]) -> list[_Held | None]:
        """A rank's call of an operator."""
        effect, draws = call_effect(
            operator_of(op, self.graph),
            self.division.mesh,
            self.division.signatures[op.name],
            self.rank,
            _forms(inputs),
        )
        made = self._make(effect, inputs, ACTIVATIONS)
        if draws:
            self._draw([held.form for held in made if held is not None])
        return made

    def _make(
        self, effect: Effect, inputs: Sequence[_Held], category: str
    ) -> list[_Held | None]:
        """What a call with this effect gives."""
        known: list[_Held | None] = list(inputs)
        for made in effect.made:
            if made is None:
                known.append(None)
            elif made.source is None:
                storage = Storage(self.account, category, made.num_bytes)
                known.append(_Held(storage, made.form))
            else:
                source = known[made.source]
                assert source is not None
                known.append(_Held(source.storage, made.form))
        full = self.with_workspaces
        spare = effect.full_spare_bytes if full else effect.spare_bytes
        self.account.pass_by(WORKSPACE, spare)
        return known[len(inputs) :]

    def _draw(self, made: Sequence[Form]) -> None:
        """The memory that keyed random numbers need besides; see `_TABLE_BYTES`."""
        self.account.add(RANDOM, 0 if self.draws else _TABLE_BYTES)
        self.draws = True
        flat = sum(form.num_bytes for form in made)
        spare = flat + min(2 * 4 * made[0].num_elements, 2 * _TABLE_BYTES)
        self.account.pass_by(RANDOM, spare)

    def _depart(self, node: Boxing) -> None:
        """Pack a boxing's payload, and make room for what it brings."""
        category = GATHERED if node.queue == PARAMS else BOXINGS
        tensors = tuple(self.values[name] for name in node.inputs)
        change = self._change(node)
        begins = departure(
            change,
            self.rank,
            _forms(tensors),
            may_overwrite=node.name in self.in_place,
        )
        payload = arrived = None
        if begins.payload is not None:
            (payload,) = self._make(begins.payload, tensors, category)
            arrived = payload
        if begins.arrival is not None:
            arrived = self._new(category, begins.arrival)
        scratch = Storage(self.account, category, self._scratch(change))
        held = tensors if begins.holds else ()
        self.flights[node.name] = _Flight((payload, scratch), held, arrived)

    def _arrive(self, node: Boxing) -> None:
        """Unpack what a boxing has brought."""
        category = GATHERED if node.queue == PARAMS else BOXINGS
        flight = self.flights.pop(node.name)
        arrived = () if flight.arrival is None else (flight.arrival,)
        known = (*flight.tensors, *arrived)
        del flight  # a wire gives back what it has sent
        effect = arrival(
            self._change(node), self.rank, _forms(known), has_arrived=bool(arrived)
        )
        outs = self._make(effect, known, category)
        for name, held in zip(node.outputs, outs, strict=True):
            assert held is not None
            self.values[name] = held
            is_new = self.refined.wiring.steps[name].tensor in self.news
            if is_new and held.storage.category == BOXINGS:
                held.storage.become(GRADIENTS)

    def _scratch(self, change: Change) -> int:
        """What the wire takes for itself."""
        if change not in self.scratch:
            cluster = self.refined.program.cluster
            self.scratch[change] = wire_bytes(change, self.rank, cluster)
        return self.scratch[change] if self.with_workspaces else 0

    def _change(self, node: Boxing) -> Change:
        assert node.direct, f"{node.name} may take more than one step"
        specs = [self.refined.program.tensors[name] for name in node.inputs]
        shapes = tuple(spec.shape for spec in specs)
        return Change(shapes, specs[0].dtype, node.src, node.dst)


def _forms(held: Sequence[_Held]) -> tuple[Form, ...]:
    return tuple(item.form for item in held)
