"""How long a step holds each tensor: when boxings are waited for, and what is dropped.

    awaited      before a node: boxings whose results it is the first to read, and those
                 that have travelled long enough                      -> awaited
    last reads   after a node: what no later one reads                -> last_reads
    in place     boxings that may overwrite their input               -> in_place

The order is fixed, so that the memory of a step is known before it runs.

# NOTE [Boxings in flight]
A boxing holds its payload until it is waited for, and nobody reads gradients before the
update: left alone, all of them would be held twice. So at most `MAX_IN_FLIGHT` boxings
of a queue travel at once; the next one waits for the oldest. A link that is busy stays
busy, because others are still queued behind the one that is waited for.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from placet.program.functions.linear import contract, linear
from placet.program.graph import Graph
from placet.program.node import Boxing, Node
from placet.program.refine import Refined

aten = torch.ops.aten

MAX_IN_FLIGHT = 4
"""Boxings of one queue that travel at the same time."""

FRESH: frozenset[Callable[..., Any]] = frozenset(
    {
        linear,
        contract,
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.sum.default,
        aten.sum.dim_IntList,
        aten.convolution_backward.default,
        aten.embedding_dense_backward.default,
    }
)
"""Operators each of whose outputs is memory of its own; others may be views."""


def awaited(nodes: Sequence[Node]) -> list[list[str]]:
    """Per node: the boxings that are waited for before it."""
    makes: dict[str, str] = {}
    waited: set[str] = set()
    flying: dict[str, deque[str]] = {}
    found = []
    for node in nodes:
        needed = dict.fromkeys(makes[n] for n in node.inputs if n in makes)
        if isinstance(node, Boxing):
            queue = flying.setdefault(node.queue, deque())
            while queue and queue[0] in waited:
                queue.popleft()
            if sum(name not in waited for name in queue) >= MAX_IN_FLIGHT:
                needed[queue.popleft()] = None
            queue.append(node.name)
            makes.update(dict.fromkeys(node.outputs, node.name))
        found.append([name for name in needed if name not in waited])
        waited.update(needed)
    return found


def last_reads(nodes: Sequence[Node]) -> list[list[str]]:
    """Per node: what no later node reads; the update's inputs are never dropped."""
    found: list[list[str]] = [[] for _ in nodes]
    seen: set[str] = set(nodes[-1].inputs)
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        for name in dict.fromkeys((*node.inputs, *node.outputs)):
            if name not in seen:
                seen.add(name)
                found[index].append(name)
    return found


def in_place(graph: Graph, refined: Refined) -> frozenset[str]:
    """The boxings whose one input may be overwritten: nobody else sees its memory.

    An all-reduce of it then needs no memory of its own.
    """
    fresh = {
        name
        for op in graph.ops
        if op.target in FRESH
        for name in op.outputs
        if name is not None
    }
    reads = Counter(refined.wiring.reads.values())
    reads.update(step.input for step in refined.wiring.steps.values())
    reads.update(refined.wiring.news.values())
    reads.update(refined.wiring.results.values())
    return frozenset(
        boxing.name
        for boxing in refined.program.boxings()
        if len(boxing.inputs) == 1
        and boxing.inputs[0] in fresh
        and reads[boxing.inputs[0]] == 1
    )
