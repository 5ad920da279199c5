"""The search for a plan as a problem over plain numbers.

    nodes     operators and states; each takes one of its choices
    tensors   each has a producer and consumers, and a graph of layouts with prices
    cost      sum of the choices' costs + sum over tensors of the cheapest tree of
              boxings from the layout it is made in to all layouts it is read in

A choice gives a layout (an index into the tensor's domain) for every input and output.
A state (parameter, buffer) is a node too: its output is the value that the step reads
and its input the gradient, or new value, which must come back to the same layout.
The batch is a node with one choice, B: every rank can read any part of it, and B -> S
is free.

Nodes and tensors of one class are alike (the layers of a deep model): same choices,
same costs. Classes only help: see `planner/relax.py` for why bounds stay valid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from placet.boxing.routes import Domain
from placet.program.graph import Phase
from placet.program.signature import Signature

Indices = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Node:
    """An operator, a state, or the batch.

    Args:
        name: of the op, or of the state, or "batch".
        inputs: tensors (indices into `Problem.tensors`), one per input slot.
        outputs: one per output slot; None for an output that nobody reads.
        signatures: per choice, one signature per mesh axis; for a state or the batch
            its layouts stand in `output_layouts` alone and this is ().
        input_layouts: (choices, inputs) an index into each tensor's domain.
        output_layouts: (choices, outputs); -1 where nobody reads the output.
        costs: (choices,) of computing, in the objective's unit.
        state_bytes: (choices,) what it holds on the fullest rank during the whole step
            (parameter, optimizer state); zeros for operators.
        phase: when it runs; states and the batch are "forward".
        label: for people: module and operator.
        kind: nodes of one class are alike; negative: alone.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    signatures: tuple[tuple[Signature, ...], ...]
    input_layouts: Indices
    output_layouts: Indices
    costs: Floats
    state_bytes: Floats
    phase: Phase = "forward"
    label: str = ""
    kind: int = -1

    @property
    def is_state(self) -> bool:
        """Whether it is a parameter or buffer, and not an operator or the batch."""
        stores = bool(self.outputs) and not self.signatures
        return stores and not self.name.startswith("batch")


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the graph.

    Args:
        domain: its layouts and what changing between them costs; tensors of equal
            shape and dtype share one.
        producer: (node, output slot).
        consumers: (node, input slot), in the order in which they run.
        is_view: it shares its producer's input's memory.
        kind: tensors of one class are alike; negative: alone.
    """

    name: str
    domain: Domain
    producer: tuple[int, int]
    consumers: tuple[tuple[int, int], ...]
    is_view: bool = False
    kind: int = -1


@dataclass(frozen=True, eq=False)
class Problem:
    """What to decide, on one mesh.

    Args:
        memory_bytes: what each rank may hold; None for no limit.
    """

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    memory_bytes: float | None = None

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Nodes by name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def late_reads(self) -> tuple[tuple[int, ...], ...]:
        """Per tensor made in the forward, which consumers read it in the backward.

        Positions in `Tensor.consumers`. Views share memory that others hold: none.
        """
        return tuple(map(self._late, self.tensors))

    def _late(self, tensor: Tensor) -> tuple[int, ...]:
        if tensor.is_view or self.nodes[tensor.producer[0]].phase == "backward":
            return ()
        return tuple(
            i
            for i, (n, _) in enumerate(tensor.consumers)
            if self.nodes[n].phase == "backward"
        )


@dataclass(frozen=True)
class Assignment:
    """A choice for every node of a problem.

    Args:
        choices: one per node.
        regathered: tensors that the backward reads from the layout they are made in
            again, by boxings of its own, so that nothing else is kept for it (a
            parameter's home is held anyway: ZeRO level 3).
    """

    choices: tuple[int, ...]
    regathered: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Evaluation:
    """What an assignment costs.

    Args:
        total: nodes and boxings, in the objective's unit.
        computing, boxing: the two terms.
        memory_bytes: states, and what the forward keeps for the backward.
    """

    total: float
    computing: float
    boxing: float
    memory_bytes: float


Reads = tuple[int, tuple[int, ...]]
"""The layout a tensor is made in, and those it is read in, in order of use."""


def evaluate(problem: Problem, assignment: Assignment) -> Evaluation:
    """The exact cost of an assignment, and the memory it needs."""
    computing, held = 0.0, 0.0
    for node, choice in zip(problem.nodes, assignment.choices, strict=True):
        computing += float(node.costs[choice])
        held += float(node.state_bytes[choice])
    boxing = 0.0
    for t in range(len(problem.tensors)):
        boxing += tensor_cost(problem, t, assignment)
        held += kept_bytes(problem, t, assignment)
    return Evaluation(computing + boxing, computing, boxing, held)


def tensor_cost(problem: Problem, index: int, assignment: Assignment) -> float:
    """The price of a tensor's boxings under an assignment."""
    domain = problem.tensors[index].domain
    return sum(domain.tree_price(*tree) for tree in wanted(problem, index, assignment))


def wanted(problem: Problem, index: int, assignment: Assignment) -> tuple[Reads, ...]:
    """What a tensor's trees of boxings join: one tree, or two if it is regathered.

    The second tree, from the layout it is made in again, is the backward's.
    """
    made, read = layouts_of(problem, index, assignment.choices)
    if index not in assignment.regathered:
        return ((made, tuple(dict.fromkeys(read))),)
    late = problem.late_reads[index]
    first = [x for i, x in enumerate(read) if i not in late]
    return (
        (made, tuple(dict.fromkeys(first))),
        (made, tuple(dict.fromkeys(read[i] for i in late))),
    )


def kept_bytes(problem: Problem, index: int, assignment: Assignment) -> float:
    """What the forward keeps of a tensor for the backward, on the fullest rank.

    All layouts that the backward reads it in; if it is regathered, the one it is made
    in. What a state or the batch is stored in counts as theirs.
    """
    late = problem.late_reads[index]
    if not late:
        return 0.0
    tensor = problem.tensors[index]
    made, read = layouts_of(problem, index, assignment.choices)
    kept = {made} if index in assignment.regathered else {read[i] for i in late}
    if not problem.nodes[tensor.producer[0]].signatures:
        kept.discard(made)
    return float(sum(tensor.domain.local_bytes[x] for x in kept))


def layouts_of(
    problem: Problem, index: int, choices: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """The layout a tensor is made in, and the one each consumer reads it in."""
    tensor = problem.tensors[index]
    node, slot = tensor.producer
    made = int(problem.nodes[node].output_layouts[choices[node], slot])
    read = tuple(
        int(problem.nodes[n].input_layouts[choices[n], s]) for n, s in tensor.consumers
    )
    return made, read


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    Args:
        assignment: the best found; None if there is none within the memory.
        cost: of it.
        bound: no assignment costs less, whatever the solver.
        is_complete: false if a time limit ended the search early.
        solver: its name.
        seconds: what it took.
        least_memory_bytes: of any assignment, where none fits.
        notes: what the solver wants people to know.
    """

    assignment: Assignment | None
    cost: float
    bound: float
    is_complete: bool
    solver: str
    seconds: float
    least_memory_bytes: float | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def gap(self) -> float:
        """How far from the best it can be at most, relative to the bound."""
        if self.cost <= self.bound + 1e-9:
            return 0.0
        return (self.cost - self.bound) / self.bound if self.bound > 0 else np.inf
