"""Nodes and tensors that are alike: the layers of a deep model share decisions.

Two nodes are of one class if their labels agree but for the numbers of their blocks
("h.3.attn:mm" and "h.7.attn:mm"; of several numbers the last tells parts of a block
apart), they are the k-th of that label within their block, and their tables of choices
are equal, entry by entry                                   -> find_classes
Sums of gradients belong to no module, so no number in their labels tells blocks apart:
these are alike if their neighbours' labels are, but for numbers    -> _place
Two tensors are of one class if their producers are, their domains price alike, and
their consumers are alike, slot by slot.

Equality is checked on the arrays, so a class never holds what differs. Grouping is
free to be coarse: `planner/relax.py` says why any grouping gives valid bounds.
"""

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from placet.boxing.routes import Domain
from placet.planner.problem import Node, Problem

_NUMBER = re.compile(r"\d+")
Members = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Ties:
    """Who decides together.

    Args:
        nodes: the members of each class; every node is in one.
        tensors: the same of tensors.
        node_class: (nodes,) the class of each.
    """

    nodes: Members
    tensors: Members
    node_class: tuple[int, ...]

    @property
    def is_trivial(self) -> bool:
        """Whether every node decides alone."""
        return len(self.nodes) == len(self.node_class)


def untied(problem: Problem) -> Ties:
    """Every node and tensor alone."""
    nodes, tensors = range(len(problem.nodes)), range(len(problem.tensors))
    return Ties(tuple((n,) for n in nodes), tuple((t,) for t in tensors), tuple(nodes))


def ties_of(problem: Problem) -> Ties:
    """The classes that a problem's `kind`s name.

    Raises:
        ValueError: nodes or tensors of one kind differ in their tables.
    """
    nodes = _members((n.kind for n in problem.nodes), len(problem.nodes))
    tensors = _members((t.kind for t in problem.tensors), len(problem.tensors))
    for group in nodes:
        first = problem.nodes[group[0]]
        if any(not _alike(first, problem.nodes[n]) for n in group[1:]):
            raise ValueError(f"nodes of kind {first.kind} have other choices")
    for group in tensors:
        if len({_tensor_shape(problem, t) for t in group}) > 1:
            kind = problem.tensors[group[0]].kind
            raise ValueError(f"tensors of kind {kind} have other domains or readers")
    node_class = [0] * len(problem.nodes)
    for i, group in enumerate(nodes):
        for n in group:
            node_class[n] = i
    return Ties(nodes, tensors, tuple(node_class))


def find_classes(problem: Problem) -> Problem:
    """The same problem with the `kind`s of nodes and tensors that are alike."""
    kinds = _node_kinds(problem)
    nodes = tuple(
        replace(node, kind=kind)
        for node, kind in zip(problem.nodes, kinds, strict=True)
    )
    seen: dict[Hashable, int] = {}
    tensors = []
    for t, tensor in enumerate(problem.tensors):
        node, slot = tensor.producer
        readers = tuple((kinds[n], s) for n, s in tensor.consumers)
        key = (kinds[node], slot, readers, *_tensor_shape(problem, t))
        tensors.append(replace(tensor, kind=seen.setdefault(key, len(seen))))
    return replace(problem, nodes=nodes, tensors=tuple(tensors))


def _node_kinds(problem: Problem) -> list[int]:
    """A class for each node."""
    counts: dict[str, int] = {}
    found: dict[Hashable, list[tuple[int, Node]]] = {}
    kinds: list[int] = []
    total = 0
    for node in problem.nodes:
        label = f"{node.label or node.name} {node.phase}"
        position = counts.get(label, 0)
        counts[label] = position + 1
        place = position if _NUMBER.search(label) else _place(problem, node)
        domains = tuple(
            None if t is None else fingerprint(problem.tensors[t].domain)
            for t in (*node.inputs, *node.outputs)
        )
        key = (_unnumbered(label), place, len(node.costs), domains)
        alike = found.setdefault(key, [])
        for kind, other in alike:
            if _alike(node, other):
                kinds.append(kind)
                break
        else:
            alike.append((total, node))
            kinds.append(total)
            total += 1
    return kinds


def _place(problem: Problem, node: Node) -> Hashable:
    """Who makes what a node reads, and who reads what it makes."""

    def at(end: tuple[int, int]) -> tuple[str, int]:
        other = problem.nodes[end[0]]
        return _unnumbered(f"{other.label or other.name} {other.phase}"), end[1]

    makers = tuple(at(problem.tensors[t].producer) for t in node.inputs)
    readers = tuple(
        None if t is None else tuple(map(at, problem.tensors[t].consumers))
        for t in node.outputs
    )
    return makers, readers


def _unnumbered(label: str) -> str:
    """A label without the numbers of blocks.

    >>> _unnumbered("h.3.attn:mm"), _unnumbered("blocks.3.body.7:aten.mm")
    ('h.*.attn:mm', 'blocks.*.body.7:aten.mm')
    """
    module, colon, operator = label.partition(":")
    count = len(_NUMBER.findall(module))
    return _NUMBER.sub("*", module, max(count - 1, 1)) + colon + operator


def _alike(a: Node, b: Node) -> bool:
    return (
        a.phase == b.phase
        and bool(a.signatures) == bool(b.signatures)
        and [t is None for t in a.outputs] == [t is None for t in b.outputs]
        and np.array_equal(a.input_layouts, b.input_layouts)
        and np.array_equal(a.output_layouts, b.output_layouts)
        and np.array_equal(a.costs, b.costs)
        and np.array_equal(a.state_bytes, b.state_bytes)
    )


def _tensor_shape(problem: Problem, index: int) -> tuple[Hashable, ...]:
    """What tensors of one class must share."""
    tensor = problem.tensors[index]
    is_stored = not problem.nodes[tensor.producer[0]].signatures
    late = problem.late_reads[index]
    return fingerprint(tensor.domain), len(tensor.consumers), late, is_stored


@lru_cache(maxsize=4096)
def fingerprint(domain: Domain) -> int:
    """Equal for domains that price alike."""
    return hash((domain.steps.tobytes(), domain.local_bytes.tobytes()))


def _members(kinds: Iterable[int], count: int) -> Members:
    groups: dict[Hashable, list[int]] = {}
    for i, kind in enumerate(kinds):
        groups.setdefault(kind if kind >= 0 else ("alone", i), []).append(i)
    assert sum(map(len, groups.values())) == count
    return tuple(map(tuple, groups.values()))
