"""The grammar of programs: each rule is broken once, and named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S
from placet.program.node import Boxing, Compute, Load, Save, TensorSpec, Update
from placet.program.program import Program
from placet.program.verify import verify

MESH = Mesh("data=2")


def on(placement: Placement, mesh: Mesh = MESH) -> Layout:
    return Layout(mesh, [placement])


def spec(placement: Placement, shape: tuple[int, ...] = (4, 3)) -> TensorSpec:
    return TensorSpec(shape, torch.float32, on(placement))


def good() -> Program:
    """One weight, trained by its reduced gradient."""
    tensors = {
        "w": spec(B),
        "batch": spec(S(0), (8,)),
        "grad": spec(P()),
        "sum": spec(B),
        "new": spec(B),
    }
    nodes = (
        Load("load", ("batch",)),
        Compute("work", ("batch", "w"), ("grad",), early=("grad",)),
        Boxing("reduce", ("grad",), ("sum",), on(P()), on(B)),
        Update("update", ("w", "sum"), ("new",)),
        Save("save", ("new",)),
    )
    return Program("job", MESH, tensors, nodes, ("w",))


def with_node(index: int, **changes: Any) -> Callable[[Program], Program]:
    """A change of one node."""

    def changed(program: Program) -> Program:
        nodes = list(program.nodes)
        nodes[index] = replace(nodes[index], **changes)
        return replace(program, nodes=tuple(nodes))

    return changed


def with_tensor(name: str, value: TensorSpec) -> Callable[[Program], Program]:
    """A change of one tensor."""
    return lambda p: replace(p, tensors={**p.tensors, name: value})


def swapped(program: Program) -> Program:
    first, second, *others = program.nodes
    return replace(program, nodes=(second, first, *others))


BROKEN: dict[str, tuple[Callable[[Program], Program], str]] = {
    "undeclared": (
        with_node(1, inputs=("batch", "v")),
        r"node 'work' uses 'v', which is not declared",
    ),
    "undeclared output": (
        with_node(4, outputs=("file",)),
        r"node 'save' uses 'file', which is not declared",
    ),
    "read before it is made": (
        swapped,
        r"node 'work' reads 'batch' before any node makes it",
    ),
    "not in the state": (
        lambda p: replace(p, state=()),
        r"node 'work' reads 'w' before any node makes it; .*`state`",
    ),
    "made twice": (
        with_node(3, outputs=("sum",)),
        r"node 'update' makes 'sum' a second time",
    ),
    "two names": (
        with_node(4, name="load"),
        r"two nodes are named 'load'",
    ),
    "early but no output": (
        with_node(1, early=("sum",)),
        r"node 'work': early output 'sum' is not an output",
    ),
    "an update on terms": (
        with_node(3, inputs=("w", "grad")),
        r"node 'update' computes on 'grad', which is .*P\(sum\).*box it to B or S",
    ),
    "a compute node on terms": (
        lambda p: replace(
            p,
            tensors={**p.tensors, "more": spec(B)},
            nodes=(*p.nodes, Compute("again", ("grad",), ("more",))),
        ),
        r"node 'again' computes on 'grad'.*accepts_partial",
    ),
    "a boxing of two into one": (
        with_node(2, inputs=("grad", "w")),
        r"boxing 'reduce' has 2 inputs and 1 outputs",
    ),
    "a boxing of nothing": (
        with_node(2, inputs=(), outputs=()),
        r"boxing 'reduce' has 0 inputs and 0 outputs",
    ),
    "another src": (
        with_node(2, src=on(S(0))),
        r"boxing 'reduce' says src .*S\(0\).*, but 'grad' is .*P\(sum\)",
    ),
    "another dst": (
        with_node(2, dst=on(S(1))),
        r"boxing 'reduce' says dst .*S\(1\).*, but 'sum' is .*B",
    ),
    "a layout that does not fit": (
        with_tensor("w", spec(S(2))),
        r"cannot place a tensor of shape \(4, 3\) as S\(2\)",
    ),
    "a tensor elsewhere": (
        with_tensor(
            "w", TensorSpec((4, 3), torch.float32, on(B, Mesh("data=2", ranks=[2, 3])))
        ),
        r"tensor 'w' lies on .*, outside the program's Mesh\('data=2'\)",
    ),
}


def test_a_good_program_is_returned_as_it_is() -> None:
    program = good()
    assert verify(program) is program


@pytest.mark.parametrize("title", BROKEN)
def test_a_broken_rule_is_named(title: str) -> None:
    change, said = BROKEN[title]
    with pytest.raises(ValueError, match=said):
        verify(change(good()))


def test_a_linear_node_may_read_terms() -> None:
    program = good()
    more = Compute("again", ("grad",), ("more",), accepts_partial=True)
    tensors = {**program.tensors, "more": spec(P())}
    verify(replace(program, tensors=tensors, nodes=(*program.nodes, more)))


def test_a_tensor_may_lie_on_a_part_of_the_mesh() -> None:
    lonely = TensorSpec((4, 3), torch.float32, on(B, Mesh("data=1")))
    verify(with_tensor("alone", lonely)(good()))
