"""When boxings are waited for, what is dropped, and what may be overwritten."""

from collections import Counter

import torch
from torch import nn

from placet.placement.layout import replicated
from placet.placement.mesh import Mesh
from placet.program.capture import capture
from placet.program.lifetimes import MAX_IN_FLIGHT, awaited, in_place, last_reads
from placet.program.node import Boxing, Node, Update
from placet.program.normalise.normalise import normalise
from placet.program.refine import refine
from testing.divisions import guided_division
from tests.program.planned_programs import (
    DATA,
    data_parallel,
    grid,
    refined,
    squares,
    states_at_home,
)

WHOLE = replicated(Mesh("a=2"))


def boxing(index: int, queue: str = "q") -> Boxing:
    """x{index} -> y{index}."""
    return Boxing(
        f"b{index}", (f"x{index}",), (f"y{index}",), WHOLE, WHOLE, queue=queue
    )


def test_few_boxings_of_a_queue_travel_at_once() -> None:
    count = MAX_IN_FLIGHT + 3
    nodes: list[Node] = [boxing(i) for i in range(count)]
    nodes.append(Update("update", tuple(f"y{i}" for i in range(count)), ()))
    found = awaited(nodes)
    assert found[:MAX_IN_FLIGHT] == [[]] * MAX_IN_FLIGHT
    assert found[MAX_IN_FLIGHT:-1] == [["b0"], ["b1"], ["b2"]]
    assert found[-1] == [f"b{i}" for i in range(3, count)]


def test_queues_do_not_wait_for_each_other() -> None:
    nodes: list[Node] = [boxing(i, queue=f"q{i % 2}") for i in range(2 * MAX_IN_FLIGHT)]
    assert awaited(nodes) == [[]] * len(nodes)


def test_boxings_waited_for_by_readers_make_room() -> None:
    nodes: list[Node] = []
    for i in range(2 * MAX_IN_FLIGHT):
        nodes += [boxing(i), Update(f"reads{i}", (f"y{i}",), ())]
    assert awaited(nodes)[0::2] == [[]] * (2 * MAX_IN_FLIGHT)


def test_each_boxing_is_waited_for_once_and_before_its_reader() -> None:
    for case in (data_parallel(), states_at_home(), grid()):
        nodes = refined(case, bucket_bytes=1).program.nodes
        waited = awaited(nodes)
        count = Counter(name for names in waited for name in names)
        assert set(count.values()) == {1}
        done: set[str] = set()
        makes = {n: b.name for b in nodes if isinstance(b, Boxing) for n in b.outputs}
        for node, names in zip(nodes, waited, strict=True):
            done.update(names)
            assert done.issuperset(makes[n] for n in node.inputs if n in makes)


def test_what_the_update_reads_is_not_dropped() -> None:
    nodes = refined(data_parallel()).program.nodes
    dropped = [name for names in last_reads(nodes) for name in names]
    assert len(dropped) == len(set(dropped))
    assert not set(dropped) & set(nodes[-1].inputs)
    for index, names in enumerate(last_reads(nodes)):
        later = {name for node in nodes[index + 1 :] for name in node.inputs}
        assert not later.intersection(names)


def test_gradient_that_only_its_boxing_reads_is_overwritten() -> None:
    with torch.device("meta"):
        weight = nn.Parameter(torch.empty(8, 8))
        model = _Times(weight)
    graph = normalise(capture(model, torch.empty(16, 8), squares).graph, 2)
    division = guided_division(graph, Mesh("data=2"), [DATA])
    made = refine(graph, division, name="test", bucket_bytes=1)
    (only,) = [b for b in made.program.boxings() if b.name in in_place(graph, made)]
    assert only.inputs == (graph.states[0].new,)


def test_views_and_buckets_are_not_overwritten() -> None:
    graph, division = data_parallel()
    assert not in_place(graph, refined((graph, division)))


class _Times(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight
