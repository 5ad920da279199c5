"""A program: a whole job as data, a list of nodes over named placed tensors.

The one description of work: the planner refines its compute nodes, the exchange
rewrites its boxings, the executor fires its nodes, recovery observes them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from placet.boxing.plan import BoxingPlan, plan_boxing, plan_direct
from placet.placement.cluster import Cluster
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.program.node import Boxing, Node, TensorSpec


@dataclass(frozen=True)
class Program:
    """Nodes in an order in which they may fire, over tensors on one mesh.

    Args:
        name: of the job.
        mesh: where all tensors live.
        tensors: shape, dtype and layout of every name the nodes use.
        nodes: in a valid order; nodes that do not depend on each other may overlap.
        state: the tensors that exist before the first step (parameters).
        cluster: the links by which moves choose their algorithm; None leaves them.
    """

    name: str
    mesh: Mesh
    tensors: Mapping[str, TensorSpec]
    nodes: tuple[Node, ...]
    state: tuple[str, ...]
    cluster: Cluster | None = None

    def __str__(self) -> str:
        return describe(self)

    @property
    def num_parameters(self) -> int:
        """Elements of the tensors in `state`, whole, wherever their parts are."""
        return sum(math.prod(self.tensors[name].shape) for name in self.state)

    def boxings(self) -> tuple[Boxing, ...]:
        """The boxing nodes, in order."""
        return tuple(n for n in self.nodes if isinstance(n, Boxing))

    def boxing_plan(self, boxing: Boxing) -> BoxingPlan:
        """The moves of a boxing: what is priced, run and recorded, all from here."""
        specs = [self.tensors[name] for name in boxing.inputs]
        shapes = tuple(spec.shape for spec in specs)
        make = plan_direct if boxing.direct else plan_boxing
        return make(
            shapes, specs[0].dtype, boxing.src, boxing.dst, cluster=self.cluster
        )

    def sent_bytes(self, rank: int) -> int:
        """Bytes that the boxings of one step make a rank send."""
        return sum(
            b.times * self.boxing_plan(b).sent_bytes(rank) for b in self.boxings()
        )

    def received_bytes(self, rank: int) -> int:
        """Bytes that the boxings of one step make a rank receive."""
        return sum(
            b.times * self.boxing_plan(b).received_bytes(rank) for b in self.boxings()
        )


def change(src: Layout, dst: Layout) -> str:
    """A change of layout in short: only the axes that change."""
    rows = zip(src.mesh.axes, src.placements, dst.placements, strict=True)
    parts = [f"{p!r} -> {q!r} @{axis}" for axis, p, q in rows if p != q]
    return ", ".join(parts) or "no change"


def describe(program: Program) -> str:
    """A program as text: one line a node, with the bytes its boxings move."""
    lines = [f"program {program.name} on {program.mesh!r}"]
    lines += [f"  {_line(program, node)}" for node in program.nodes]
    rank = program.mesh.ranks[0]
    sent, received = program.sent_bytes(rank), program.received_bytes(rank)
    lines.append(
        f"  a step sends {bytes_text(sent)} and receives {bytes_text(received)} "
        f"on rank {rank}"
    )
    return "\n".join(lines)


def _line(program: Program, node: Node) -> str:
    kind = type(node).__name__.lower()
    head = f"{kind:8} {node.name:28}"
    if isinstance(node, Boxing):
        plan = program.boxing_plan(node)
        rank = program.mesh.ranks[0]
        often = f" x {node.times}" if node.times > 1 else ""
        size = bytes_text(sum(program.tensors[n].num_bytes for n in node.inputs))
        return (
            f"{head} {change(node.src, node.dst):22} {len(node.inputs):3} tensors, "
            f"{size}, receives {bytes_text(plan.received_bytes(rank))}{often}"
        )
    return f"{head} {_names(program, node.inputs)} -> {_names(program, node.outputs)}"


def _names(program: Program, names: tuple[str, ...]) -> str:
    """Names with their placements; long lists are summed up by placement."""
    if not names:
        return "()"
    if len(names) <= 2:
        return ", ".join(f"{n} {_placements(program, n)}" for n in names)
    kinds = sorted({_placements(program, n) for n in names})
    return f"{len(names)} tensors {' | '.join(kinds)}"


def _placements(program: Program, name: str) -> str:
    spec = program.tensors.get(name)
    return " ".join(map(repr, spec.layout.placements)) if spec else ""


def bytes_text(count: float) -> str:
    """Bytes for people: 4.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
