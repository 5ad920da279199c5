"""A deep model as a search problem, to time solvers: linear layers, there and back.

Each layer is six nodes: a parameter, its product with the activations, a pointwise
operator, and in the backward the pointwise operator's gradient and two products.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from placet.boxing.routes import Domain, StepPrice, make_domain
from placet.placement.mesh import Mesh
from placet.placement.placement import B, Partial, Placement, Split
from placet.planner.problem import Node, Problem, Tensor
from placet.program.graph import Phase

S0, S1, S2, P = Split(0), Split(1), Split(2), Partial()
Row = tuple[Placement, ...]

PRODUCT: tuple[Row, ...] = ((S0, B, S0), (S1, B, S1), (B, S1, S2), (S2, S0, P))
INPUT_GRADIENT: tuple[Row, ...] = ((S0, B, S0), (S1, B, S1), (B, S0, S2), (S2, S1, P))
WEIGHT_GRADIENT: tuple[Row, ...] = ((S0, S0, P), (S1, S1, P), (S2, B, S0), (B, S2, S1))
POINTWISE: tuple[Row, ...] = ((S0, S0), (S1, S1), (S2, S2), (B, B))
POINTWISE_GRADIENT: tuple[Row, ...] = (*((x,) * 3 for x in (S0, S1, S2, B)), (B, P, P))
HOME: tuple[Row, ...] = ((B,), (S0,), (S1,))


@dataclass
class _Deep:
    mesh: Mesh
    nodes: list[Node]
    domains: list[Domain]
    producers: list[tuple[int, int]]
    readers: list[list[tuple[int, int]]]

    def tensor(self, domain: Domain) -> int:
        self.domains.append(domain)
        self.producers.append((-1, 0))
        self.readers.append([])
        return len(self.domains) - 1

    def add(
        self,
        name: str,
        inputs: Sequence[int],
        output: int,
        rows: Sequence[Row],
        phase: Phase = "forward",
    ) -> None:
        """Adds an operator, or, with one placement in a row, a state."""
        is_state = len(rows[0]) == 1
        tensors = (*inputs, output)
        found = []
        for picked in product(rows, repeat=len(self.mesh.axes)):
            columns = [
                tuple(row[min(i, len(row) - 1)] for row in picked)
                for i in range(len(tensors))
            ]
            at = [
                self.domains[t].positions.get(c)
                for t, c in zip(tensors, columns, strict=True)
            ]
            if None not in at:
                found.append(at)
        table = np.array(found, dtype=np.int32)
        n, count = len(self.nodes), len(found)
        held = np.zeros(count)
        if is_state:
            held = 4 * self.domains[output].local_bytes[table[:, -1]]
        for slot, t in enumerate(inputs):
            self.readers[t].append((n, slot))
        self.producers[output] = n, 0
        costs = np.arange(count) * 1e-6 / count
        self.nodes.append(
            Node(
                name,
                tuple(inputs),
                (output,),
                () if is_state else ((),) * count,
                table[:, :-1],
                table[:, -1:],
                costs,
                held,
                phase,
                name,
            )
        )


def deep_problem(
    mesh: Mesh,
    price: StepPrice,
    *,
    num_blocks: int,
    num_layers: int = 10,
    shape: tuple[int, int] = (64, 2048),
    width: int = 4096,
) -> Problem:
    """Blocks of linear layers, each layer as wide as the one before.

    Args:
        shape: of the activations without their last dim.
    """
    every: list[Placement] = [B, S0, S1, S2, P]
    options = [every] * len(mesh.axes)
    acts = make_domain((*shape, width), torch.float32, mesh, options, price)
    weights: list[list[Placement]] = [[B, S0, S1, P] for _ in options]
    params = make_domain((width, width), torch.float32, mesh, weights, price)
    deep = _Deep(mesh, [], [], [], [])
    x = deep.tensor(acts)
    deep.add("batch", (), x, ((B, B),))
    done: list[tuple[str, int, int, int]] = []
    for block, layer in product(range(num_blocks), range(num_layers)):
        name = f"h.{block}.{'abcdefghijklmnopqrst'[layer]}"
        w, y, z = deep.tensor(params), deep.tensor(acts), deep.tensor(acts)
        deep.add(f"{name}.weight", (), w, HOME)
        deep.add(f"{name}:linear", (x, w), y, PRODUCT)
        deep.add(f"{name}:gelu", (y,), z, POINTWISE)
        done.append((name, x, w, y))
        x = z
    g = deep.tensor(acts)
    deep.add("loss", (x,), g, POINTWISE, "backward")
    for name, x, w, y in reversed(done):
        dy, dx, dw = deep.tensor(acts), deep.tensor(acts), deep.tensor(params)
        deep.add(f"{name}:gelu_back", (y, g), dy, POINTWISE_GRADIENT, "backward")
        deep.add(f"{name}:input_back", (dy, w), dx, INPUT_GRADIENT, "backward")
        deep.add(f"{name}:weight_back", (x, dy), dw, WEIGHT_GRADIENT, "backward")
        _come_home(deep, w, dw)
        g = dx
    tensors = tuple(
        Tensor(f"t{t}", deep.domains[t], deep.producers[t], tuple(deep.readers[t]))
        for t in range(len(deep.domains))
    )
    return Problem(tuple(deep.nodes), tensors)


def _come_home(deep: _Deep, weight: int, gradient: int) -> None:
    """A parameter's gradient ends where the parameter is stored."""
    n = deep.producers[weight][0]
    old = deep.nodes[n]
    deep.nodes[n] = Node(
        old.name,
        (gradient,),
        old.outputs,
        (),
        old.output_layouts,
        old.output_layouts,
        old.costs,
        old.state_bytes,
        old.phase,
        old.label,
    )
    deep.readers[gradient].append((n, 0))
