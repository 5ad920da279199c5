"""How long a step holds each tensor: when boxings are waited for, and what is dropped.

    awaited      before a node: boxings whose results it is the first to read, and those
                 that have travelled long enough                      -> awaited
    last reads   after a node: what no later one reads                -> last_reads

The order is fixed, so that the memory of a step is known before it runs.

# NOTE [Boxings in flight]
A boxing holds its payload until it is waited for, and nobody reads gradients before the
update: left alone, all of them would be held twice. So at most `MAX_IN_FLIGHT` boxings
of a queue travel at once; the next one waits for the oldest. A link that is busy stays
busy, because others are still queued behind the one that is waited for.
"""

from collections import deque
from collections.abc import Sequence

from placet.program.node import Boxing, Node

MAX_IN_FLIGHT = 4
"""Boxings of one queue that travel at the same time."""


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
