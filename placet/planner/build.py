"""From a captured graph to the problem that solvers see.

    a tensor's domain   every placement that its producer, or a consumer, can have
                        along an axis, on all axes                 -> _domains
    nodes               batch inputs, states, operators, the results
    a state's memory    value + optimizer state, as parts of its home

Tensors of equal shape and dtype share a domain. Memory is what is held when the forward
ends and no gradient is there yet: no plan's peak is less (`fit.py` sees to the rest).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from placet.boxing.routes import Domain, make_domain
from placet.cost.objective import Objective
from placet.placement.layout import Layout, replicated
from placet.placement.mesh import Mesh
from placet.placement.placement import B, Placement, Split
from placet.planner.choices import Choices, find_choices
from placet.planner.pins import Pin, Placed, allowed, pinned_names, select
from placet.planner.plan_names import nearest
from placet.planner.problem import Node, Problem, Tensor
from placet.planner.storage import Storage, is_home
from placet.program.graph import Graph, Op, State, TensorMeta
from placet.program.rules.table import signatures
from placet.program.signature import Operator, operator_of, target_name

BATCH = "batch:"
RESULTS = "results"


def build_problem(
    graph: Graph,
    mesh: Mesh,
    objective: Objective,
    *,
    storage: Storage | None = None,
    memory_bytes: float | None = None,
    pins: Sequence[Pin] = (),
    homes: Mapping[str, Layout] | None = None,
) -> Problem:
    """The search problem of a graph on a mesh.

    Args:
        graph: normalised.
        storage: what parameters hold besides their values.
        memory_bytes: what each rank may hold; None for no limit.
        pins: what the user decided.
        homes: states whose layouts are given (a second program of a plan).

    Raises:
        ValueError: a pin that matches nothing, or leaves no choice.
    """
    operators = {op.name: operator_of(op, graph) for op in graph.ops}
    domains = _domains(graph, mesh, operators, objective)
    builder = _Nodes(graph, mesh, objective, domains, storage or Storage())
    for name in graph.inputs:
        builder.add_input(name)
    for state in graph.states:
        builder.add_state(state, (homes or {}).get(state.name))
    for op in graph.ops:
        builder.add_op(op, operators[op.name])
    builder.add_results()
    nodes = _pinned(builder, graph, mesh, pins)
    return Problem(tuple(nodes), builder.tensors(nodes), memory_bytes)


class _Nodes:
    """Collects the nodes of a problem."""

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        objective: Objective,
        domains: Mapping[str, Domain],
        storage: Storage,
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.objective = objective
        self.domains = domains
        self.storage = storage
        self.names = tuple(graph.tensors)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.views: set[str] = set()
        self.nodes: list[Node] = []
        self._choices: dict[object, Choices] = {}

    def add_input(self, name: str) -> None:
        """A tensor of the batch: whole everywhere, and B -> S is free."""
        whole = self.domains[name].index(replicated(self.mesh))
        self._add(BATCH + name, (), (name,), [], [[whole]], label="batch")

    def add_state(self, state: State, home: Layout | None) -> None:
        """A parameter or buffer: read where it is stored, its news come back there."""
        domain = self.domains[state.tensor]
        if home is not None:
            homes = [domain.index(home)]
        elif state.is_foreign or (self.storage.whole and state.is_parameter):
            homes = [domain.index(replicated(self.mesh))]
        else:
            homes = [i for i, x in enumerate(domain.layouts) if is_home(x)]
        rows = [[i] for i in homes]
        held = 1.0
        if state.is_parameter and state.new is not None:
            held += self.storage.optimizer
        back = () if state.new is None else (state.new,)
        inputs = rows if state.new is not None else [[] for _ in rows]
        self._add(
            state.name,
            back,
            (state.tensor,),
            inputs,
            rows,
            state_bytes=held * domain.local_bytes[homes],
            label=state.name,
        )

    def add_op(self, op: Op, operator: Operator) -> None:
        """An operator."""
        inputs = [self.domains[name] for name in op.inputs]
        outputs = [None if n is None else self.domains[n] for n in op.outputs]
        key = (operator, tuple(map(id, inputs)), tuple(map(id, outputs)))
        if key not in self._choices:
            self._choices[key] = find_choices(
                operator, self.mesh, inputs, outputs, self.objective
            )
        found = self._choices[key]
        if _is_view(op.target):
            self.views.update(n for n in op.outputs if n is not None)
        self.nodes.append(
            Node(
                op.name,
                tuple(self.number[n] for n in op.inputs),
                tuple(None if n is None else self.number[n] for n in op.outputs),
                found.signatures,
                found.input_layouts,
                found.output_layouts,
                found.costs,
                np.zeros(len(found.costs)),
                op.phase,
                f"{op.module}:{target_name(op.target)}",
            )
        )

    def add_results(self) -> None:
        """Who reads the loss and the like, whole."""
        states = {s.new for s in self.graph.states}
        names = [n for n in self.graph.results if n not in states]
        row = [self.domains[n].index(replicated(self.mesh)) for n in names]
        self._add(RESULTS, names, (), [row], [[]], label="results", phase_last=True)

    def tensors(self, nodes: Sequence[Node]) -> tuple[Tensor, ...]:
        """The tensors, with who makes and who reads them."""
        made: dict[int, tuple[int, int]] = {}
        read: dict[int, list[tuple[int, int]]] = {}
        for n, node in enumerate(nodes):
            for slot, t in enumerate(node.outputs):
                if t is not None:
                    made[t] = n, slot
        operators_first = sorted(range(len(nodes)), key=lambda n: not _runs(nodes[n]))
        for n in operators_first:
            for slot, t in enumerate(nodes[n].inputs):
                read.setdefault(t, []).append((n, slot))
        return tuple(
            Tensor(
                name,
                self.domains[name],
                made[i],
                tuple(read.get(i, ())),
                name in self.views,
            )
            for i, name in enumerate(self.names)
        )

    def _add(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        input_rows: Sequence[Sequence[int]],
        output_rows: Sequence[Sequence[int]],
        *,
        state_bytes: np.ndarray | None = None,
        label: str = "",
        phase_last: bool = False,
    ) -> None:
        count = len(output_rows)
        ins = np.array(input_rows or [[]], dtype=np.int32).reshape(count, len(inputs))
        outs = np.array(output_rows, dtype=np.int32).reshape(count, len(outputs))
        held = np.zeros(count) if state_bytes is None else state_bytes
        self.nodes.append(
            Node(
                name,
                tuple(self.number[n] for n in inputs),
                tuple(self.number[n] for n in outputs),
                (),
                ins,
                outs,
                np.zeros(count),
                held,
                "backward" if phase_last else "forward",
                label,
            )
        )


def _runs(node: Node) -> bool:
    """Whether it is an operator, and not a state, an input or the results."""
    return bool(node.signatures)


@lru_cache(maxsize=4096)
def _is_view(target: object) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info for r in schema.returns)


def _domains(
    graph: Graph,
    mesh: Mesh,
    operators: Mapping[str, Operator],
    objective: Objective,
) -> dict[str, Domain]:
    """The domain of every tensor."""
    wanted: dict[TensorMeta, dict[Placement, None]] = {}
    for meta in graph.tensors.values():
        wanted.setdefault(meta, {B: None})
    for op in graph.ops:
        for signature in signatures(operators[op.name]):
            for name, placement in zip(op.inputs, signature.inputs, strict=True):
                wanted[graph.tensors[name]][placement] = None
            for made, placement in zip(op.outputs, signature.outputs, strict=True):
                if made is not None:
                    wanted[graph.tensors[made]][placement] = None
    for state in graph.states:
        meta = graph.tensors[state.tensor]
        dims = [d for d, size in enumerate(meta.shape) if size > 1]
        wanted[meta].update(dict.fromkeys(map(Split, dims)))
    made_domains = {
        meta: make_domain(
            meta.shape,
            meta.dtype,
            mesh,
            [tuple(placements)] * len(mesh.axes),
            objective.step_price,
        )
        for meta, placements in wanted.items()
    }
    return {name: made_domains[meta] for name, meta in graph.tensors.items()}


def _pinned(
    builder: _Nodes, graph: Graph, mesh: Mesh, pins: Sequence[Pin]
) -> list[Node]:
    """The nodes, with the choices that the user's pins allow."""
    about = [pinned_names(pin, graph) for pin in pins]
    for pin, names in zip(pins, about, strict=True):
        if pin.axis not in (None, *mesh.axes):
            raise ValueError(
                f"Pin({pin.pattern!r}, {pin.axis!r}): {mesh!r} has the axes "
                f"{', '.join(mesh.axes)}"
            )
        if not names:
            raise ValueError(
                f"Pin({pin.pattern!r}) matches no "
                f"{'parameter or buffer' if pin.home else 'module or operator'}; "
                f"{nearest(pin.pattern, _names_for(pin, graph))}"
            )
    nodes = []
    for node in builder.nodes:
        pairs = zip(pins, about, strict=True)
        mine = [pin for pin, names in pairs if node.name in names]
        if mine:
            kept = allowed(mine, node, _placed(builder, node, mesh))
            node = select(node, kept)
        nodes.append(node)
    return nodes


def _names_for(pin: Pin, graph: Graph) -> list[str]:
    """What a pin could be about."""
    if pin.home is not None:
        return [state.name for state in graph.states]
    return list(dict.fromkeys(op.module for op in graph.ops if op.module))


def _placed(builder: _Nodes, node: Node, mesh: Mesh) -> Placed:
    """What pins look at: the placements of the first input and the first output."""

    def of(tensor: int, column: Sequence[int]) -> list[tuple[Placement, ...]]:
        layouts = builder.domains[builder.names[tensor]].layouts
        return [layouts[i].placements for i in column]

    slot = next((i for i, t in enumerate(node.outputs) if t is not None), None)
    unplaced: tuple[Placement, ...] = (B,) * len(mesh.axes)
    whole = [unplaced] * len(node.costs)
    made = whole
    if slot is not None:
        tensor = node.outputs[slot]
        assert tensor is not None
        made = of(tensor, node.output_layouts[:, slot].tolist())
    if not node.signatures:
        return Placed(mesh.axes, made, made)
    first = (
        of(node.inputs[0], node.input_layouts[:, 0].tolist()) if node.inputs else whole
    )
    return Placed(mesh.axes, first, made)


def with_memory(problem: Problem, memory_bytes: float | None) -> Problem:
    """The same problem with another limit."""
    return replace(problem, memory_bytes=memory_bytes)
