"""What a user decides for the planner: pins and forbidden placements.

    Pin("h.*.mlp.up.weight", "model", home=S(0))    where a parameter is stored
    Pin("h.*.mlp.up", "model", output=S(2))         what a module makes
    Pin("features.*", input=S(0))                   what a module reads
    Pin("head", "model", output=P(), forbid=True)   not so

A pattern (as of shells: *, ?) names parameters and buffers, or operators, or modules,
whose input or output is then pinned. Without an axis a pin holds on all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import get_args

import numpy as np

from placet.placement.placement import Placement
from placet.planner.problem import Node
from placet.program.graph import Graph, Op


@dataclass(frozen=True)
class Pin:
    """A placement that is decided, or forbidden.

    Args:
        pattern: of names.
        axis: of the mesh; None for every axis.
        home: of a parameter or buffer.
        input: of the first tensor that an operator, or module, reads.
        output: of the first tensor that it makes.
        forbid: the placement shall not be.

    Raises:
        ValueError: not exactly one of home, input and output is given, or no placement.
    """

    pattern: str
    axis: str | None = None
    home: Placement | None = None
    input: Placement | None = None
    output: Placement | None = None
    forbid: bool = False

    def __post_init__(self) -> None:
        given = [p for p in (self.home, self.input, self.output) if p is not None]
        if len(given) != 1:
            raise ValueError(
                f"Pin({self.pattern!r}): give one of home=, input= and output=, such "
                f"as home=S(0); got {len(given)}"
            )
        if not isinstance(given[0], get_args(Placement)):
            raise ValueError(
                f"Pin({self.pattern!r}): {given[0]!r} is no placement, such as "
                "placet.S(0), placet.B or placet.P()"
            )

    @property
    def placement(self) -> Placement:
        """The one that is pinned or forbidden."""
        return next(p for p in (self.home, self.input, self.output) if p is not None)


def pinned_names(pin: Pin, graph: Graph) -> set[str]:
    """The parameters, buffers and operators that a pin is about.

    A module's output is what its last operator of the forward makes; its input what its
    first one reads that reads more than parameters.
    """
    if pin.home is not None:
        return {s.name for s in graph.states if fnmatchcase(s.name, pin.pattern)}
    named = {op.name for op in graph.ops if fnmatchcase(op.name, pin.pattern)}
    return named or set(_of_modules(pin, graph))


def _of_modules(pin: Pin, graph: Graph) -> Iterator[str]:
    stored = {state.tensor for state in graph.states}
    inside: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.inputs and set(op.inputs) <= stored:
            stored.update(name for name in op.outputs if name is not None)
        elif op.phase == "forward":
            parts = op.module.split(".")
            for count in range(1, len(parts) + 1):
                path = ".".join(parts[:count])
                if path and fnmatchcase(path, pin.pattern):
                    inside.setdefault(path, []).append(op)
    for ops in inside.values():
        yield ops[0 if pin.input is not None else -1].name


def allowed(pins: Sequence[Pin], node: Node, placed: "Placed") -> list[int]:
    """The choices of a node that all pins about it allow.

    Args:
        pins: those that match the node.
        placed: its placements per choice.

    Raises:
        ValueError: no choice is left; says what there is.
    """
    kept = list(range(len(placed.first)))
    for pin in pins:
        left = [i for i in kept if _allows(pin, placed, i)]
        if not left:
            what = "forbids all that" if pin.forbid else "is none of what"
            known = dict.fromkeys(
                repr(p) for i in kept for p in _on_axis(pin, placed, i)
            )
            where = f" @{pin.axis}" if pin.axis else ""
            others = ", ".join(repr(p.pattern) for p in pins if p is not pin)
            raise ValueError(
                f"{pin.placement!r}{where}, pinned by Pin({pin.pattern!r}), {what} "
                f"{node.label or node.name} can have: {', '.join(known)}"
                + (f"; it is pinned by {others} as well" if others else "")
            )
        kept = left
    return kept


@dataclass(frozen=True)
class Placed:
    """Per choice: the placements, one per axis, of what pins are about.

    Args:
        axes: of the mesh.
        first: of the first input; of a state its home.
        made: of the first output; of a state its home.
    """

    axes: tuple[str, ...]
    first: Sequence[tuple[Placement, ...]]
    made: Sequence[tuple[Placement, ...]]


def _allows(pin: Pin, placed: Placed, choice: int) -> bool:
    found = _on_axis(pin, placed, choice)
    if pin.forbid:
        return pin.placement not in found
    return all(p == pin.placement for p in found)


def _on_axis(pin: Pin, placed: Placed, choice: int) -> tuple[Placement, ...]:
    of = placed.first if pin.input is not None else placed.made
    placements = of[choice]
    if pin.axis is None:
        return placements
    return (placements[placed.axes.index(pin.axis)],)


def select(node: Node, kept: Sequence[int]) -> Node:
    """A node with some of its choices."""
    if len(kept) == len(node.costs):
        return node
    rows = np.array(kept)
    return Node(
        node.name,
        node.inputs,
        node.outputs,
        tuple(node.signatures[i] for i in kept) if node.signatures else (),
        node.input_layouts[rows],
        node.output_layouts[rows],
        node.costs[rows],
        node.state_bytes[rows],
        node.phase,
        node.label,
        node.kind,
    )
