"""A segment of a plan as code for one rank: aten calls on this rank's parts.

A segment becomes an fx graph: its inputs are parts, each op is the call that the op's
rule makes of it, and what nobody reads any more is dropped; also an input, if the
caller has given up its own. Torch compiles an fx graph to a Python function, so a step
runs without an interpreter of our own; Inductor can compile it further.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from placet.placement.mesh import Mesh
from placet.program.graph import Graph, Op
from placet.program.node import Compute
from placet.program.refine import Refined
from placet.program.rules.table import localize
from placet.program.signature import (
    Call,
    Parts,
    Signature,
    Slot,
    layouts_of,
    operator_of,
)
from placet.run.planned_random import keyed_call
from placet.torch_private.codegen import BoxedCodeGen

Segment: TypeAlias = Callable[[list[Tensor]], tuple[Tensor, ...]]
"""A rank's parts in, a list that it empties; a rank's parts out."""


def segments_of(
    graph: Graph,
    refined: Refined,
    signatures: Mapping[str, tuple[Signature, ...]],
    rank: int,
    *,
    compile: bool = False,
) -> dict[str, Segment]:
    """The code of every segment of a program, for one rank.

    Args:
        signatures: of the division that the program is refined from.
        compile: let Inductor compile each segment, whole.
    """
    ops = {op.name: op for op in graph.ops}
    found: dict[str, Segment] = {}
    for node in refined.program.nodes:
        if isinstance(node, Compute):
            body = [ops[name] for name in refined.bodies[node.name]]
            code = _code(graph, refined, signatures, node, body, rank)
            name = node.name.replace(".", "_")
            found[node.name] = _compiled(code, name) if compile else _boxed(code, name)
    return found


def _boxed(code: fx.Graph, name: str) -> Segment:
    code.set_codegen(BoxedCodeGen())
    # Its __call__ is torch's wrapper, which would hold what the function lets go.
    forward: Segment = fx.GraphModule(torch.nn.Module(), code, name).forward
    return forward


def _compiled(code: fx.Graph, name: str) -> Segment:
    module = fx.GraphModule(torch.nn.Module(), code, name)
    compiled = torch.compile(module, fullgraph=True)

    def segment(parts: list[Tensor]) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = compiled(*parts)
        return made

    return segment


def _code(
    graph: Graph,
    refined: Refined,
    signatures: Mapping[str, tuple[Signature, ...]],
    node: Compute,
    body: Sequence[Op],
    rank: int,
) -> fx.Graph:
    code = fx.Graph()
    values: dict[str, fx.Node] = {}
    for i, name in enumerate(node.inputs):
        values[name] = code.placeholder(f"part_{i}")
    mesh = refined.program.mesh
    for op in body:
        inputs = [
            values[refined.wiring.reads[op.name, i]] for i in range(len(op.inputs))
        ]
        call = local_call(graph, op, signatures[op.name], mesh, rank)
        made = code.call_function(
            call.target,
            _filled(call.args, inputs),
            {name: _filled(value, inputs) for name, value in call.kwargs},
        )
        if op.returns_tuple:
            for i, output in enumerate(op.outputs):
                if output is not None:
                    values[output] = code.call_function(getitem, (made, i))
        elif op.outputs[0] is not None:
            values[op.outputs[0]] = made
    code.output(tuple(values[name] for name in node.outputs))
    return code


def local_call(
    graph: Graph, op: Op, signatures: tuple[Signature, ...], mesh: Mesh, rank: int
) -> Call:
    """What a rank calls for an op."""
    operator = operator_of(op, graph)
    call = localize(operator, Parts(*layouts_of(mesh, signatures), rank))
    return call if call.random_box is None else keyed_call(call, operator)


def _filled(value: Any, inputs: Sequence[fx.Node]) -> Any:
    if isinstance(value, Slot):
        return inputs[value.index]
    if isinstance(value, tuple):
        return tuple(_filled(item, inputs) for item in value)
    return value
