"""The grammar of programs, checked after every transformation.

every tensor is declared, and produced before it is read -> _check_order
a name is produced once a step, early outputs are outputs -> _check_outputs
no node computes on P unless it says so                   -> _check_partial
a boxing's tensors have its src and dst layouts           -> _check_boxing
a layout fits the shape and lies on the program's mesh    -> _check_tensors
"""

from placet.placement.layout import check_fits
from placet.placement.placement import Partial
from placet.program.node import Boxing, Compute, Node, Update
from placet.program.program import Program


def verify(program: Program) -> Program:
    """Return the program unchanged if it is well formed.

    Raises:
        ValueError: names the node, the tensor and the rule that is broken.
    """
    _check_tensors(program)
    known = set(program.state)
    produced: set[str] = set()
    names: set[str] = set()
    for node in program.nodes:
        if node.name in names:
            raise ValueError(f"two nodes are named {node.name!r}; names are keys")
        names.add(node.name)
        _check_order(program, node, known)
        _check_outputs(node, produced)
        _check_partial(program, node)
        if isinstance(node, Boxing):
            _check_boxing(program, node)
        known.update(node.outputs)
    return program


def _check_tensors(program: Program) -> None:
    for name, spec in program.tensors.items():
        check_fits(spec.shape, spec.layout)
        if not set(spec.layout.mesh.ranks) <= set(program.mesh.ranks):
            raise ValueError(
                f"tensor {name!r} lies on {spec.layout.mesh!r}, outside the program's "
                f"{program.mesh!r}"
            )


def _check_order(program: Program, node: Node, known: set[str]) -> None:
    for name in (*node.inputs, *node.outputs):
        if name not in program.tensors:
            raise ValueError(f"node {node.name!r} uses {name!r}, which is not declared")
    for name in node.inputs:
        if name not in known:
            raise ValueError(
                f"node {node.name!r} reads {name!r} before any node makes it; "
                "move it behind the producer or list the tensor in `state`"
            )


def _check_outputs(node: Node, produced: set[str]) -> None:
    for name in node.outputs:
        if name in produced:
            raise ValueError(f"node {node.name!r} makes {name!r} a second time")
        produced.add(name)
    if isinstance(node, Compute):
        for name in node.early:
            if name not in node.outputs:
                raise ValueError(
                    f"node {node.name!r}: early output {name!r} is not an output"
                )


def _check_partial(program: Program, node: Node) -> None:
    refuses = isinstance(node, Update) or (
        isinstance(node, Compute) and not node.accepts_partial
    )
    if not refuses:
        return
    for name in node.inputs:
        layout = program.tensors[name].layout
        if any(isinstance(p, Partial) for p in layout.placements):
            raise ValueError(
                f"node {node.name!r} computes on {name!r}, which is {layout!r}: box it "
                "to B or S first, or mark the node as linear (accepts_partial)"
            )


def _check_boxing(program: Program, node: Boxing) -> None:
    if len(node.inputs) != len(node.outputs) or not node.inputs:
        raise ValueError(
            f"boxing {node.name!r} has {len(node.inputs)} inputs and "
            f"{len(node.outputs)} outputs; it needs as many, and at least one"
        )
    for names, layout, side in (
        (node.inputs, node.src, "src"),
        (node.outputs, node.dst, "dst"),
    ):
        for name in names:
            found = program.tensors[name].layout
            if found != layout:
                raise ValueError(
                    f"boxing {node.name!r} says {side} {layout!r}, but {name!r} is "
                    f"{found!r}"
                )
