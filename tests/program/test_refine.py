"""What stands where in the program of a divided graph."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from placet.boxing.path import mean_bytes
from placet.placement.cluster import Cluster, Host, LinkClass
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import P, S
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.node import Boxing, Compute, Load, Node, Update
from placet.program.refine import BUCKET_SECONDS, GRADS, PARAMS, Refined, refine
from placet.program.route import route
from placet.program.rules.table import signatures
from placet.program.signature import operator_of
from testing.divisions import gathered_again, guided_division
from tests.program.planned_programs import (
    DATA,
    at_home,
    data_parallel,
    grid,
    normed_graph,
    perceptron_graph,
    refined,
    states_at_home,
)


def place_of(nodes: tuple[Node, ...], name: str) -> int:
    """Where the node stands that makes a tensor."""
    return next(i for i, node in enumerate(nodes) if name in node.outputs)


def first_read(nodes: tuple[Node, ...], name: str) -> int:
    """Where a tensor is first computed with."""
    return next(
        i for i, n in enumerate(nodes) if name in n.inputs and isinstance(n, Compute)
    )


def queue_of(made: Refined, queue: str) -> list[Boxing]:
    """The boxings of a queue, in order."""
    return [b for b in made.program.boxings() if b.queue == queue]


@pytest.mark.parametrize("case", [data_parallel, states_at_home, grid])
def test_every_op_is_in_one_segment(case: Callable[[], tuple[Graph, Division]]) -> None:
    graph, division = case()
    made = refined((graph, division))
    found = [name for body in made.bodies.values() for name in body]
    assert sorted(found) == sorted(op.name for op in graph.ops)
    kinds = [type(node) for node in made.program.nodes]
    assert (kinds[0], kinds[-1]) == (Load, Update)


def test_gradients_go_home_in_one_bucket() -> None:
    buckets = queue_of(refined(data_parallel()), GRADS)
    assert [len(b.inputs) for b in buckets] == [6]
    assert buckets[0].src.placements == (P(),)


def test_full_buckets_leave_before_the_backward_ends() -> None:
    made = refined(data_parallel(), bucket_bytes=560)
    buckets = queue_of(made, GRADS)
    assert [len(b.inputs) for b in buckets] == [4, 2]
    nodes = made.program.nodes
    last = max(i for i, node in enumerate(nodes) if isinstance(node, Compute))
    assert nodes.index(buckets[0]) < last


def test_slow_links_have_small_buckets() -> None:
    graph, division = data_parallel()
    counts = []
    for bytes_per_s in (1e9, 560 / BUCKET_SECONDS):
        link = LinkClass("network", 1e-4, bytes_per_s)
        host = Host("a", division.mesh.num_ranks, 1 << 30, link.name)
        made = refine(graph, division, name="test", cluster=Cluster((host,), (link,)))
        counts.append([len(b.inputs) for b in queue_of(made, GRADS)])
    assert counts == [[6], [4, 2]]


def test_buckets_change_no_bytes() -> None:
    one = refined(data_parallel()).program
    many = refined(data_parallel(), bucket_bytes=1).program
    assert len(one.boxings()) < len(many.boxings())
    assert one.received_bytes(0) == many.received_bytes(0)


def test_states_are_gathered_one_op_ahead() -> None:
    made = refined(states_at_home())
    nodes = made.program.nodes
    names = [name for b in queue_of(made, PARAMS) for name in b.outputs]
    reads = {name: first_read(nodes, name) for name in names}
    readers = sorted(set(reads.values()))
    assert len(readers) == 5  # three layers forward, two backward
    for at, following in pairwise(readers):
        for name in names:
            if reads[name] == following:
                assert place_of(nodes, name) < at, f"{name} begins too late"
    for at, _, later in zip(readers, readers[1:], readers[2:], strict=False):
        for name in names:
            if reads[name] == later:
                assert place_of(nodes, name) > at, f"{name} begins too early"


def test_boxing_stands_right_after_its_input_is_made() -> None:
    made = refined(grid())
    nodes = made.program.nodes
    moved = [b for b in made.program.boxings() if made.program.boxing_plan(b).moves(0)]
    values = [b for b in moved if b.queue not in (GRADS, PARAMS)]
    assert values
    for boxing in values:
        made_at = max(place_of(nodes, name) for name in boxing.inputs)
        between = nodes[made_at + 1 : nodes.index(boxing)]
        assert all(isinstance(node, Boxing) for node in between), boxing.name


def test_again_drops_the_first_and_gathers_anew() -> None:
    graph, mesh = normed_graph(2), Mesh("data=2")
    division = guided_division(graph, mesh, [DATA], at_home(graph, mesh))
    again = gathered_again(graph, division)
    assert again.again
    program = refined((graph, again)).program
    late = [n for n in program.tensors if n.endswith("~again")]
    assert late
    for name in late:
        kept, made = name.removesuffix("~again"), place_of(program.nodes, name)
        reads = [i for i, n in enumerate(program.nodes) if kept in n.inputs]
        assert max(reads) < first_read(program.nodes, name), name
        assert made < first_read(program.nodes, name)
    once = refined((graph, division)).program
    assert program.received_bytes(0) > once.received_bytes(0)


def all_again(division: Division, name: str) -> Division:
    """The division with a tensor's boxings made for its late reads alone."""
    boxings = {n: steps for n, steps in division.boxings.items() if n != name}
    return replace(division, boxings=boxings, again={name: division.boxings[name]})


def test_again_of_an_activation_waits_for_the_backward() -> None:
    graph, mesh = perceptron_graph(2), Mesh("model=2")
    division = guided_division(graph, mesh, [{r"^[024]\.weight": S(0)}])
    made = refined((graph, all_again(division, "tanh")))
    nodes = made.program.nodes
    (late,) = [n for n in made.program.tensors if n.endswith("~again")]
    loss = made.wiring.results[str(graph.loss)]
    assert place_of(nodes, loss) < place_of(nodes, late) < first_read(nodes, late)


def test_a_result_may_be_boxed_again() -> None:
    graph, division = data_parallel()
    assert graph.loss is not None
    assert graph.loss in division.boxings
    made = refined((graph, all_again(division, graph.loss)))
    assert made.wiring.results[graph.loss].endswith("~again")


def test_batch_in_terms_of_a_sum_is_boxed() -> None:
    graph, division = data_parallel()
    (name,) = graph.inputs
    op = next(op for op in graph.ops if name in op.inputs)
    given = Layout(division.mesh, [P()])
    terms = next(
        s
        for s in signatures(operator_of(op, graph))
        if s.inputs[op.inputs.index(name)] == P()
    )
    picked = {**division.signatures, op.name: (terms,)}
    changed = route(graph, replace(division, signatures=picked), mean_bytes)
    made = refined((graph, changed))
    assert given not in [layout for _, layout in made.batch.values()]
    assert given in [b.dst for b in made.program.boxings() if b.inputs == (name,)]


def test_program_is_equal_each_time() -> None:
    assert refined(grid()) == refined(grid())


def test_program_of_a_thousand_ranks_is_made_at_once() -> None:
    graph = perceptron_graph(1024, width=64, rows=64)
    guides = [DATA, {r"0\.": S(0), r"2\.weight": S(1)}]
    many = guided_division(graph, Mesh("data=32, model=32"), guides)
    began = time.monotonic()
    large = refined((graph, many))
    assert time.monotonic() - began < 2
    assert set(large.bodies) <= {node.name for node in large.program.nodes}
