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
            (parameter, gradient, optimizer state); zeros for operators.
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


@dataclass(frozen=True)
class Assignment:
    """A choice for every node of a problem."""

    choices: tuple[int, ...]


@dataclass(frozen=True)
class Evaluation:
    """What an assignment costs.

    Args:
        total: nodes and boxings, in the objective's unit.
        computing, boxing: the two terms.
    """

    total: float
    computing: float
    boxing: float


def evaluate(problem: Problem, assignment: Assignment) -> Evaluation:
    """The exact cost of an assignment."""
    computing = sum(
        float(node.costs[choice])
        for node, choice in zip(problem.nodes, assignment.choices, strict=True)
    )
    boxing = sum(
        tensor_cost(problem, t, assignment.choices) for t in range(len(problem.tensors))
    )
    return Evaluation(computing + boxing, computing, boxing)


def tensor_cost(problem: Problem, index: int, choices: Sequence[int]) -> float:
    """The price of a tensor's boxings under an assignment."""
    tensor = problem.tensors[index]
    return tensor.domain.tree_price(*wanted(problem, index, choices))


def wanted(
    problem: Problem, index: int, choices: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """The layout a tensor is made in, and those it is read in, in order of use."""
    tensor = problem.tensors[index]
    node, slot = tensor.producer
    made = int(problem.nodes[node].output_layouts[choices[node], slot])
    read = dict.fromkeys(
        int(problem.nodes[n].input_layouts[choices[n], s]) for n, s in tensor.consumers
    )
    return made, tuple(read)


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
