"""A captured graph and a division of it as a program: segments and boxings.

    load      the batch, in every layout that it is read in
    compute   a segment: ops between two points at which something arrives or leaves
    boxing    one step of a tensor's tree of layouts
    update    parameters from gradients, both at home

A boxing that moves bytes stands right after its input is made, and its result is waited
for right before it is read, so that it overlaps what stands between; one that is made
again for the backward stands where it is read, for the memory's sake. Parameters, or
views of them, are gathered one ahead: when one is first read, the gather of the next
begins. Gradients that go home alike travel in buckets.

The program is the same on all ranks, and costs the same for 4 ranks and 4096.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from placet.placement.cluster import Cluster
from placet.placement.layout import Layout
from placet.placement.placement import Partial, Split
from placet.program.division import Division
from placet.program.graph import Graph, Op
from placet.program.node import Boxing, Compute, Load, Node, TensorSpec, Update
from placet.program.program import Program
from placet.program.verify import verify
from placet.program.wiring import Step, Wiring, wire_up

GRADS, PARAMS, VALUES = "plan.grads", "plan.params", "plan.values"
"""Queues of a plan's boxings: gradients go home, states are gathered, the rest."""

BUCKET_BYTES, BUCKET_SECONDS = 1 << 19, 0.01
"""The most that a bucket waits for, and what the slowest link carries in so long: a
link begins early in the backward, and little is left to send at its end."""

PRIORITY = {GRADS: 0, PARAMS: 1, VALUES: 2}


@dataclass(frozen=True)
class Refined:
    """A program whose compute nodes are segments of a graph.

    Args:
        bodies: compute node -> its ops, in order.
        wiring: which of the program's tensors each op reads.
        batch: the program's tensor -> (the batch's tensor, its layout).
    """

    program: Program
    bodies: Mapping[str, tuple[str, ...]]
    wiring: Wiring
    batch: Mapping[str, tuple[str, Layout]]


def refine(
    graph: Graph,
    division: Division,
    *,
    name: str,
    cluster: Cluster | None = None,
    bucket_bytes: int | None = None,
) -> Refined:
    """The program of a graph divided over a mesh.

    Args:
        graph: normalised, as the division was made for.
        division: with its boxings (`placet.program.route`).
        name: of the job.
        cluster: the links by which moves choose their algorithm.
        bucket_bytes: gradients travel in buckets of about this size; by the links if
            left out.
    """
    wiring = wire_up(graph, division)
    size = _bucket_bytes(cluster) if bucket_bytes is None else bucket_bytes
    schedule = _Schedule(graph, wiring, size)
    schedule.run()
    nodes = _finished(graph, wiring, schedule)
    used = {n for node in nodes for n in (*node.inputs, *node.outputs)}
    state = tuple(s.tensor for s in graph.states)
    tensors = {}
    for key in [*state, *(k for k in wiring.layouts if k in used and k not in state)]:
        tensor, layout = wiring.layouts[key]
        meta = graph.tensors[tensor]
        tensors[key] = TensorSpec(meta.shape, meta.dtype, layout)
    updated = {f"{s.name}.new": s.tensor for s in graph.states if s.new is not None}
    tensors.update({new: tensors[old] for new, old in updated.items()})
    program = Program(name, division.mesh, tensors, nodes, state, cluster)
    bodies = {
        f"segment.{i}": tuple(op.name for op in segment)
        for i, segment in enumerate(schedule.segments)
    }
    return Refined(verify(program), bodies, wiring, schedule.batch)


def _bucket_bytes(cluster: Cluster | None) -> int:
    """See BUCKET_BYTES."""
    if cluster is None:
        return BUCKET_BYTES
    slowest = min(link.link_bytes_per_s for link in cluster.links)
    return min(BUCKET_BYTES, int(slowest * BUCKET_SECONDS))


@dataclass
class _Bucket:
    """Gradients that wait for others of their kind."""

    steps: list[Step] = field(default_factory=list)
    num_bytes: int = 0


class _Schedule:
    """Walks the ops; `order` collects segments (by number) and boxings."""

    def __init__(self, graph: Graph, wiring: Wiring, bucket_bytes: int) -> None:
        self.graph = graph
        self.wiring = wiring
        self.bucket_bytes = bucket_bytes
        self.order: list[int | tuple[Step, ...]] = []
        self.segments: list[list[Op]] = []
        self.batch: dict[str, tuple[str, Layout]] = {}
        self._segment: list[Op] = []
        self._fresh: set[str] = set()  # made in the open segment
        self._sent: set[str] = set()  # made by a boxing that has been ordered
        self._arrived: set[str] = set()  # such, and waited for
        self._buckets: dict[tuple[Layout, Layout, torch.dtype], _Bucket] = {}
        self._from: dict[str, list[Step]] = {}
        for step in wiring.steps.values():
            self._from.setdefault(step.input, []).append(step)
        self._bucketed = _bucketed(graph, wiring)
        self.views = _views_of_states(graph, wiring)
        self.origins = {state.tensor for state in graph.states}
        self.origins |= {n for op in self.views for n in op.outputs if n}
        self._gathers = _gathers(graph, wiring, self.origins)

    def run(self) -> None:
        """Every op, then what the update and the results want."""
        first = {op.name for op in self.views}
        rest = (op for op in self.graph.ops if op.name not in first)
        for op in (*self.views, *rest):
            for i in range(len(op.inputs)):
                self._want(self.wiring.reads[op.name, i])
            self._segment.append(op)
            made = [name for name in op.outputs if name is not None]
            self._fresh.update(made)
            for name in made:
                self._send_on(name)
        self._close()
        for bucket in self._buckets.values():
            self._send(tuple(bucket.steps))
        for name in (*self.wiring.news.values(), *self.wiring.results.values()):
            self._want(name)
        self._close()

    def _want(self, name: str) -> None:
        """Have a tensor when the next op of the segment runs."""
        step = self.wiring.steps.get(name)
        if step is None or name in self._arrived:
            if step is None and name in self.graph.inputs:
                self.batch[name] = self.wiring.layouts[name]
            return
        if step.tensor in self.graph.inputs and _is_cut(step.dst):
            self.batch[name] = self.wiring.layouts[name]
            return
        if step.output in self._gathers:
            self._close()
            self._gather_ahead(step)
        elif name not in self._sent:
            self._order(step)
        self._close()
        self._arrived.add(name)

    def _order(self, step: Step) -> None:
        """Order a boxing, and what it goes on from."""
        self._want(step.input)
        if step.input in self._fresh:
            self._close()
        self._send((step,))

    def _gather_ahead(self, step: Step) -> None:
        """Send the boxings of an op's states, and those of the next op that has any."""
        at = self._gathers[step.output]
        for name, place in self._gathers.items():
            if at <= place <= at + 1 and name not in self._sent:
                self._send((self.wiring.steps[name],))

    def _send_on(self, name: str) -> None:
        """Order the boxings that move a tensor that has just been made."""
        if name in self.origins:
            return
        for step in self._from.get(name, ()):
            if step.output in self._sent or not step.moves or step.again:
                continue
            if step.output in self._bucketed:
                self._collect(step)
            else:
                self._close()
                self._send((step,))

    def _collect(self, step: Step) -> None:
        """Put a gradient into its bucket, which goes when it is full."""
        meta = self.graph.tensors[step.tensor]
        if meta.num_bytes >= self.bucket_bytes:
            self._close()
            self._send((step,))
            return
        key = (step.src, step.dst, meta.dtype)
        bucket = self._buckets.setdefault(key, _Bucket())
        bucket.steps.append(step)
        bucket.num_bytes += meta.num_bytes
        if bucket.num_bytes >= self.bucket_bytes:
            self._close()
            self._send(tuple(self._buckets.pop(key).steps))

    def _send(self, steps: tuple[Step, ...]) -> None:
        self.order.append(steps)
        self._sent.update(step.output for step in steps)

    def _close(self) -> None:
        """End the open segment."""
        if self._segment:
            self.order.append(len(self.segments))
            self.segments.append(self._segment)
            self._segment = []
            self._fresh = set()


def _bucketed(graph: Graph, wiring: Wiring) -> set[str]:
    """Gradients that go home in one step, and that nobody reads before."""
    read = {*wiring.reads.values(), *wiring.results.values()}
    homes = [wiring.news[s.name] for s in graph.states if s.is_parameter and s.new]
    return {
        name
        for name in homes
        if (step := wiring.steps.get(name)) is not None
        and step.input == step.tensor
        and step.tensor not in wiring.steps
        and step.input not in read
        and name not in read
        and step.moves
    }


VIEWS = frozenset(
    {
        torch.ops.aten.t.default,
        torch.ops.aten.transpose.int,
        torch.ops.aten.permute.default,
        torch.ops.aten.view.default,
        torch.ops.aten.unsqueeze.default,
    }
)
"""What modules do to a weight before they use it."""


def _views_of_states(graph: Graph, wiring: Wiring) -> tuple[Op, ...]:
    """Views of states at home that are boxed: they come first, to be gathered ahead."""
    known = {state.tensor for state in graph.states}
    found = []
    for op in graph.ops:
        reads = [wiring.reads[op.name, i] for i in range(len(op.inputs))]
        if op.target in VIEWS and known.issuperset(reads):
            found.append(op)
            known.update(n for n in op.outputs if n)
    wanted = {step.input for step in wiring.steps.values() if step.moves}
    kept: list[Op] = []
    for op in reversed(found):
        if wanted.intersection(op.outputs):
            kept.append(op)
            wanted.update(op.inputs)
    return tuple(reversed(kept))


def _gathers(graph: Graph, wiring: Wiring, states: Collection[str]) -> dict[str, int]:
    """The boxings that begin at a state -> the how-manieth op with such reads it."""
    found: dict[str, int] = {}
    place = 0
    for op in graph.ops:
        known = len(found)
        for i in range(len(op.inputs)):
            name = wiring.reads[op.name, i]
            step = wiring.steps.get(name)
            while step is not None and step.input not in states:
                step = wiring.steps.get(step.input)
            if step is not None and step.moves:
                found.setdefault(step.output, place)
        place += len(found) > known
    return found


def _finished(graph: Graph, wiring: Wiring, schedule: _Schedule) -> tuple[Node, ...]:
    """The nodes, now that it is known what is read outside of each segment."""
    reads = [
        {wiring.reads[op.name, i] for op in segment for i in range(len(op.inputs))}
        for segment in schedule.segments
    ]
    readers: dict[str, set[int]] = {}
    for number, names in enumerate(reads):
        for name in names:
            readers.setdefault(name, set()).add(number)
    outside = {step.input for step in wiring.steps.values()}
    outside |= {*wiring.news.values(), *wiring.results.values()}
    nodes: list[Node] = [Load("load", tuple(schedule.batch))]
    count = 0
    for item in schedule.order:
        if isinstance(item, int):
            segment = schedule.segments[item]
            made = dict.fromkeys(n for op in segment for n in op.outputs if n)
            needed = tuple(
                n for n in made if n in outside or readers.get(n, set()) - {item}
            )
            inputs = tuple(sorted(reads[item] - made.keys()))
            partial = any(_is_partial(wiring.layouts[n][1]) for n in inputs)
            nodes.append(
                Compute(f"segment.{item}", inputs, needed, accepts_partial=partial)
            )
        else:
            nodes.append(_boxing(item, wiring, schedule.origins, count))
            count += 1
    nodes.append(_update(graph, wiring))
    return tuple(nodes)


def _boxing(
    steps: Sequence[Step], wiring: Wiring, origins: Collection[str], count: int
) -> Boxing:
    queue = VALUES
    if steps[0].output in set(wiring.news.values()):
        queue = GRADS
    elif steps[0].input in origins:
        queue = PARAMS
    return Boxing(
        f"box.{count}",
        tuple(step.input for step in steps),
        tuple(step.output for step in steps),
        steps[0].src,
        steps[0].dst,
        priority=PRIORITY[queue],
        queue=queue,
        direct=True,
    )


def _update(graph: Graph, wiring: Wiring) -> Update:
    changed = [s for s in graph.states if s.new is not None]
    return Update(
        "update",
        (
            *(s.tensor for s in changed),
            *dict.fromkeys(wiring.news[s.name] for s in changed),
            *wiring.results.values(),
        ),
        tuple(f"{s.name}.new" for s in changed),
    )


def _is_cut(layout: Layout) -> bool:
    """Whether parts are cut out of the whole; terms of a sum are not."""
    return not any(
        isinstance(p, Partial) or (isinstance(p, Split) and p.adjoint)
        for p in layout.placements
    )


def _is_partial(layout: Layout) -> bool:
    return any(isinstance(p, Partial) for p in layout.placements)
