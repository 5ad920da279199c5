"""Random search problems, small enough to try every plan, and large ones to time.

Domains are random directed graphs of steps; what stands for a layout has no meaning.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placet.boxing.routes import Domain
from placet.placement.layout import Layout, replicated
from placet.placement.mesh import Mesh
from placet.planner.problem import Indices, Node, Problem, Tensor

OPERATOR = ((),)
"""Signatures that say: an operator, and not a state."""


def random_domain(rng: np.random.Generator, size: int, *, free: float = 0.2) -> Domain:
    """A domain of that many layouts.

    Args:
        free: the fraction of steps, in one direction, that cost nothing.
    """
    steps = rng.integers(1, 40, (size, size)).astype(float)
    # Free steps never lead back, as B -> S does not.
    steps[np.triu(rng.random((size, size)) < free)] = 0.0
    steps[rng.random((size, size)) < 0.4] = np.inf
    ring = np.arange(size)
    there = steps[ring, (ring + 1) % size]
    steps[ring, (ring + 1) % size] = np.where(np.isfinite(there), there, 60.0)
    np.fill_diagonal(steps, 0.0)
    prices = steps.copy()
    for k in range(size):
        np.minimum(prices, prices[:, k, None] + prices[None, k], out=prices)
    local = rng.integers(1, 9, size).astype(float)
    return Domain(_names(size), steps, prices, local)


def _names(size: int) -> tuple[Layout, ...]:
    return (replicated(Mesh("a=1")),) * size


def random_problem(
    rng: np.random.Generator,
    *,
    num_nodes: int = 6,
    max_choices: int = 3,
    max_layouts: int = 9,
) -> Problem:
    """States, operators of two phases, tensors with up to three consumers."""
    domains = [
        random_domain(rng, int(rng.integers(3, max_layouts + 1))) for _ in range(2)
    ]
    num_states = int(rng.integers(1, 3))
    nodes: list[Node] = []
    made: list[tuple[int, int]] = []
    readers: list[list[tuple[int, int]]] = []
    which: list[Domain] = []
    for n in range(num_nodes):
        is_state = n < num_states
        count = int(rng.integers(1, max_choices + 1))
        open_tensors = [t for t, r in enumerate(readers) if len(r) < 3]
        unread = [t for t in open_tensors if not readers[t]]
        inputs: list[int] = []
        if not is_state:
            inputs.append(unread[0] if unread else int(rng.choice(open_tensors)))
            if rng.random() < 0.6:
                inputs.append(int(rng.choice(open_tensors)))
        for slot, t in enumerate(inputs):
            readers[t].append((n, slot))
        domain = domains[int(rng.integers(2))]
        output = len(made)
        made.append((n, 0))
        readers.append([])
        which.append(domain)
        reads = [_picked(rng, which[t], count) for t in inputs]
        size = rng.integers(0, 12, count).astype(float) if is_state else np.zeros(count)
        nodes.append(
            Node(
                f"{'state' if is_state else 'op'}{n}",
                tuple(inputs),
                (output,),
                () if is_state else OPERATOR * count,
                _columns(reads, count),
                _columns([_picked(rng, domain, count)], count),
                rng.integers(0, 20, count).astype(float),
                size,
                "backward" if n > num_nodes // 2 else "forward",
            )
        )
    _bring_home(rng, nodes, num_states, made, readers, which)
    tensors = tuple(
        Tensor(f"t{t}", which[t], made[t], tuple(readers[t])) for t in range(len(made))
    )
    return Problem(tuple(nodes), tensors)


def _bring_home(
    rng: np.random.Generator,
    nodes: list[Node],
    num_states: int,
    made: list[tuple[int, int]],
    readers: list[list[tuple[int, int]]],
    which: list[Domain],
) -> None:
    """States read a late tensor, a gradient, in the layout they are stored in."""
    for n in range(num_states):
        home = made.index((n, 0))
        fitting = [
            t
            for t in range(len(made))
            if which[t] is which[home] and not readers[t] and made[t][0] >= num_states
        ]
        if fitting and rng.random() < 0.8:
            t = fitting[-1]
            readers[t].append((n, 0))
            nodes[n] = replace(
                nodes[n], inputs=(t,), input_layouts=nodes[n].output_layouts
            )


def _picked(rng: np.random.Generator, domain: Domain, count: int) -> Indices:
    return rng.integers(0, len(domain.layouts), count).astype(np.int32)


def _columns(columns: Sequence[Indices], count: int) -> Indices:
    table = np.zeros((count, len(columns)), dtype=np.int32)
    for slot, column in enumerate(columns):
        table[:, slot] = column
    return table


def repeated_problem(rng: np.random.Generator, problem: Problem, times: int) -> Problem:
    """A problem several times over, each joined to the one before by a new reader."""
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    for block in range(times):
        shift_n, shift_t = len(nodes), len(tensors)
        for node in problem.nodes:
            nodes.append(
                replace(
                    node,
                    name=f"h.{block}.{node.name}",
                    label=f"h.{block}.{node.name}",
                    inputs=tuple(t + shift_t for t in node.inputs),
                    outputs=tuple(
                        None if t is None else t + shift_t for t in node.outputs
                    ),
                )
            )
        for tensor in problem.tensors:
            tensors.append(
                replace(
                    tensor,
                    name=f"h.{block}.{tensor.name}",
                    producer=(tensor.producer[0] + shift_n, tensor.producer[1]),
                    consumers=tuple((n + shift_n, s) for n, s in tensor.consumers),
                )
            )
    size = len(problem.tensors)
    first = next(n for n, x in enumerate(problem.nodes) if x.signatures)
    target = size - 1
    wants = _picked(
        rng, problem.tensors[target].domain, len(problem.nodes[first].costs)
    )
    for block in range(1, times):
        n = block * len(problem.nodes) + first
        t = (block - 1) * size + target
        old = nodes[n]
        nodes[n] = replace(
            old,
            inputs=(*old.inputs, t),
            input_layouts=np.column_stack([old.input_layouts, wants]).astype(np.int32),
        )
        reader = (n, len(old.inputs))
        tensors[t] = replace(tensors[t], consumers=(*tensors[t].consumers, reader))
    return Problem(tuple(nodes), tuple(tensors), problem.memory_bytes)
