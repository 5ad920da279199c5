"""A plain module as a data-parallel program: which boxings each ZeRO level needs.

With the batch S(0) over the data axis, every gradient comes out P(sum):

    level 0   grad P(sum) -> B                        update on whole parameters
    level 1   grad P(sum) -> S(0), once a step        update on parts, part S(0) -> B
    level 2   the same, after every micro-batch       gradients are kept as parts only
    level 3   the same; parameters are stored S(0)    and boxed to B around each block

Sources: ZeRO (arXiv:1910.02054), sec. 5; OneFlow (arXiv:2110.15032), which writes it as
a placement of the parameters. Differs in that parts are slices of dim 0, and in the
`totals` (loss, count of targets, used parameters), which travel with a gradient bucket.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from placet.placement.cluster import Cluster
from placet.placement.layout import Layout, Shape, along
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S
from placet.program.blocks import Block, block_name
from placet.program.node import (
    Boxing,
    Compute,
    Evaluate,
    Load,
    Node,
    Save,
    TensorSpec,
    Update,
)
from placet.program.program import Program
from placet.program.verify import verify

ZeroLevel: TypeAlias = Literal[0, 1, 2, 3]
TOTALS = "totals"
NORM = "norm"
STATISTICS = "batch_norm"
NUM_SUMS = 3
"""The totals open with the loss sum, the count of targets and the stop requests."""


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of the model, as far as its placement is concerned."""

    name: str
    shape: Shape
    dtype: torch.dtype
    trainable: bool = True


@dataclass(frozen=True)
class DataParallel:
    """What decides a data-parallel program.

    Args:
        level: the ZeRO level.
        whole_updates: the optimizer needs whole tensors, so updates stay on B.
        bucket_bytes: gradients travel in buckets of about this size.
        batch_rows: rows of the global batch.
        accumulate: micro-batches per step and rank.
        batch_norms: features of each layer that normalises over the global batch, in
            forward order.
        evaluates, saves: the job has a validation set, or checkpoints.
        needs_norm: the update wants the gradients' global norm (clipping, fp16).
        axis: the mesh axis the batch is split over.
    """

    level: ZeroLevel = 0
    whole_updates: bool = False
    bucket_bytes: int = 2 << 20
    batch_rows: int = 1
    accumulate: int = 1
    batch_norms: tuple[int, ...] = ()
    needs_norm: bool = False
    evaluates: bool = False
    saves: bool = False
    axis: str = "data"

    @property
    def splits_updates(self) -> bool:
        """Whether the optimizer works on parts."""
        return self.level >= 1 and not self.whole_updates

    @property
    def splits_parameters(self) -> bool:
        """Whether parameters are stored as parts."""
        return self.level == 3 and not self.whole_updates


def build_program(
    name: str,
    mesh: Mesh,
    parameters: Sequence[ParameterSpec],
    blocks: Sequence[Block],
    *,
    options: DataParallel,
    cluster: Cluster | None = None,
) -> Program:
    """The program of one training step.

    Args:
        name: of the job.
        mesh: with the axis that `options` names; the others hold replicas.
        parameters: all of them, in the model's order.
        blocks: who owns which, in forward order, the root last.
        options: level and sizes.
        cluster: the links by which moves choose their algorithm.

    Raises:
        ValueError: an unknown axis.
    """
    mesh.axis_index(options.axis)
    builder = _Builder(mesh, {p.name: p for p in parameters}, tuple(blocks), options)
    builder.declare()
    builder.forward()
    builder.backward()
    builder.update()
    builder.ending()
    nodes, stored = tuple(builder.nodes), tuple(builder.stored)
    program = Program(name, mesh, builder.tensors, nodes, stored, cluster)
    return verify(program)


class _Builder:
    """Collects the tensors and nodes of one program."""

    def __init__(
        self,
        mesh: Mesh,
        parameters: dict[str, ParameterSpec],
        blocks: tuple[Block, ...],
        options: DataParallel,
    ) -> None:
        self.mesh = mesh
        self.parameters = parameters
        self.blocks = blocks
        self.options = options
        self.tensors: dict[str, TensorSpec] = {}
        self.nodes: list[Node] = []
        self.stored: list[str] = []
        self.reduced: list[str] = []
        self.late: list[str] = []

    def layout(self, placement: Placement) -> Layout:
        """`placement` on the data axis, B on the others."""
        return along(self.mesh, self.options.axis, placement)

    def part_placement(self, name: str) -> Placement:
        """S(0), or B for a tensor without dims, which cannot be split."""
        return S(0) if self.parameters[name].shape else B

    def add(self, name: str, like: str, placement: Placement) -> str:
        """Declare a tensor shaped like a parameter."""
        spec = self.parameters[like]
        self.tensors[name] = TensorSpec(spec.shape, spec.dtype, self.layout(placement))
        return name

    def declare(self) -> None:
        """The parameters as they are stored, the batch and the totals."""
        for name in self.parameters:
            splits = self.options.splits_parameters
            self.add(name, name, self.part_placement(name) if splits else B)
            self.stored.append(name)
        rows = (self.options.batch_rows,)
        self.tensors["batch"] = TensorSpec(rows, torch.int64, self.layout(S(0)))
        count = NUM_SUMS + len(self.trainable())
        wide = any(p.dtype == torch.float64 for p in self.parameters.values())
        dtype = torch.float64 if wide else torch.float32
        for name, placement in ((TOTALS, P()), (f"{TOTALS}.sum", B)):
            self.tensors[name] = TensorSpec((count,), dtype, self.layout(placement))
        self.nodes.append(Load("load", ("batch",)))

    def trainable(self) -> list[str]:
        """Names of the parameters that get gradients."""
        return [n for n, p in self.parameters.items() if p.trainable]

    def split_of(self, block: Block) -> list[str]:
        """A block's parameters that are stored as parts."""
        if not self.options.splits_parameters:
            return []
        return [n for n in block.parameters if self.parameters[n].shape]

    def gather(self, block: Block, phase: str) -> list[str]:
        """Box a block's stored parts to B; names of what its compute reads."""
        split = self.split_of(block)
        whole = [n for n in block.parameters if n not in split]
        for index, names in enumerate(self.by_dtype(split)):
            outputs = [self.add(f"{n}.{phase}", n, B) for n in names]
            name = f"{block_name(block)}.gather.{phase}.{index}"
            self.box(name, names, outputs, S(0), B, queue="params", each=True)
            whole += outputs
        return whole

    def by_dtype(self, names: Sequence[str]) -> list[list[str]]:
        """Names grouped by dtype: one payload has one dtype."""
        groups: dict[torch.dtype, list[str]] = {}
        for name in names:
            groups.setdefault(self.parameters[name].dtype, []).append(name)
        return list(groups.values())

    def box(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        src: Placement,
        dst: Placement,
        *,
        queue: str,
        each: bool = False,
    ) -> None:
        """Append a boxing node; `each` micro-batch fires it, or the step."""
        self.nodes.append(
            Boxing(
                name,
                tuple(inputs),
                tuple(outputs),
                self.layout(src),
                self.layout(dst),
                priority=1 if queue in ("params", STATISTICS) else 0,
                queue=queue,
                times=self.options.accumulate if each else 1,
            )
        )

    def forward(self) -> None:
        """Every block's forward, with its gathers; the root's parameters come first."""
        root = self.blocks[-1]
        root_inputs = self.gather(root, "forward")
        for index, features in enumerate(self.options.batch_norms):
            self.statistics(f"{STATISTICS}.{index}.forward", 1 + 2 * features)
        source = "batch"
        for block in self.blocks[:-1]:
            inputs = self.gather(block, "forward")
            source = self.compute(block, "forward", (source, *inputs))
        self.compute(root, "forward", (source, *root_inputs), totals=True)

    def statistics(self, name: str, count: int) -> None:
        """One layer's sums over the global batch, boxed in the middle of a block."""
        local, total = f"{name}.local", f"{name}.sum"
        for tensor, placement in ((local, P()), (total, B)):
            layout = self.layout(placement)
            self.tensors[tensor] = TensorSpec((count,), torch.float64, layout)
        self.nodes.append(Compute(local, (), (local,)))
        self.box(name, [local], [total], P(), B, queue=STATISTICS, each=True)

    def compute(
        self, block: Block, phase: str, inputs: tuple[str, ...], totals: bool = False
    ) -> str:
        """Append a forward node; its activations stand for all it computes."""
        output = f"{block_name(block)}.{phase}"
        self.tensors[output] = self.tensors["batch"]
        outputs = (output, TOTALS) if totals else (output,)
        self.nodes.append(Compute(output, inputs, outputs))
        return output

    def backward(self) -> None:
        """Backward nodes from the last block to the first, then their boxings."""
        root = self.blocks[-1]
        for index, features in enumerate(self.options.batch_norms):
            self.statistics(f"{STATISTICS}.{index}.backward", 2 * features)
        source = f"{block_name(root)}.forward"
        order = [*reversed(self.blocks[:-1]), root]
        made: list[str] = []
        for block in order:
            # The root, and the block whose turn comes at once, stay whole until then.
            kept = block is root or block is order[0]
            inputs = () if kept else self.gather(block, "backward")
            name = f"{block_name(block)}.backward"
            grads = [
                self.add(f"{n}.grad", n, P())
                for n in reversed(block.parameters)
                if self.parameters[n].trainable
            ]
            self.tensors[name] = self.tensors["batch"]
            self.nodes.append(
                Compute(name, (source, *inputs), (name, *grads), tuple(grads))
            )
            source = name
            if self.options.level == 3:
                self.reduce_block(block)
            else:
                made += [n.removesuffix(".grad") for n in grads]
        if self.options.level < 3:
            self.reduce_buckets(made)
        if TOTALS not in {n for node in self.nodes for n in _boxed(node)}:
            self.reduce_totals()

    def reduce_block(self, block: Block) -> None:
        """Box a block's gradients as soon as its backward has made them."""
        names = [n for n in reversed(block.parameters) if self.parameters[n].trainable]
        self.reduce(names, f"{block_name(block)}.grads")

    def reduce_buckets(self, names: Sequence[str]) -> None:
        """Box gradients in backward order: large ones alone, the others in buckets."""
        buckets: list[list[str]] = []
        bucket: list[str] = []
        size = 0
        for name in names:
            spec = self.parameters[name]
            num_bytes = torch.Size(spec.shape).numel() * spec.dtype.itemsize
            if num_bytes >= self.options.bucket_bytes // 2:
                buckets.append([name])
                continue
            if bucket and size + num_bytes > self.options.bucket_bytes:
                buckets.append(bucket)
                bucket, size = [], 0
            bucket.append(name)
            size += num_bytes
        for index, group in enumerate([*buckets, bucket] if bucket else buckets):
            self.reduce(group, f"grads.{index}", with_totals=group is bucket)

    def reduce_totals(self) -> None:
        """Box the totals, with those gradients that wait for the last micro-batch."""
        for name in self.late:
            self.reduced.append(self.add(f"{name}.grad.sum", name, B))
        dtype = self.tensors[TOTALS].dtype
        others = [n for n in self.late if self.parameters[n].dtype != dtype]
        for index, names in enumerate(self.by_dtype(others)):
            inputs = [f"{n}.grad" for n in names]
            self.box_sums(f"late.{index}", inputs)
        same = [f"{n}.grad" for n in self.late if n not in others]
        self.box_sums(TOTALS, [*same, TOTALS])

    def box_sums(self, name: str, inputs: Sequence[str]) -> None:
        """Box terms to whole sums, once a step."""
        outputs = [f"{n}.sum" for n in inputs]
        self.box(name, inputs, outputs, P(), B, queue=TOTALS)

    def reduce(
        self, names: Sequence[str], title: str, with_totals: bool = False
    ) -> None:
        """Box some gradients from P(sum) to where the update wants them."""
        splits = self.options.splits_updates
        split = [n for n in names if splits and self.parameters[n].shape]
        whole = [n for n in names if n not in split]
        if splits and self.options.level >= 2:  # these are boxed every micro-batch
            self.late += whole
            whole = []
        groups: list[tuple[list[str], Placement]] = []
        groups += [(group, S(0)) for group in self.by_dtype(split)]
        groups += [(group, B) for group in self.by_dtype(whole)]
        for index, (group, placement) in enumerate(groups):
            inputs = [f"{n}.grad" for n in group]
            outputs = [self.add(f"{n}.grad.sum", n, placement) for n in group]
            self.reduced += outputs
            dtype = self.parameters[group[0]].dtype
            if (
                with_totals
                and placement == B
                and index == len(groups) - 1
                and dtype == self.tensors[TOTALS].dtype
            ):
                inputs, outputs = [*inputs, TOTALS], [*outputs, f"{TOTALS}.sum"]
            name = title if len(groups) == 1 else f"{title}.{index}"
            each = splits and self.options.level >= 2
            self.box(name, inputs, outputs, P(), placement, queue="grads", each=each)

    def update(self) -> None:
        """The optimizer's node, and the boxings that bring parts back to B."""
        trainable = self.trainable()
        back = self.options.splits_updates and not self.options.splits_parameters
        inputs = [*self.reduced, f"{TOTALS}.sum"]
        outputs = []
        if self.options.needs_norm:
            inputs.append(self.norm())
        for name in trainable:
            placement = self.part_placement(name) if self.options.splits_updates else B
            outputs.append(self.add(f"{name}.new", name, placement))
        self.nodes.append(Update("update", (*trainable, *inputs), tuple(outputs)))
        if not back:
            return
        for block in (self.blocks[-1], *self.blocks[:-1]):
            split = [n for n in block.parameters if n in trainable]
            split = [n for n in split if self.parameters[n].shape]
            for index, names in enumerate(self.by_dtype(split)):
                news = [f"{n}.new" for n in names]
                wholes = [self.add(f"{n}.whole", n, B) for n in names]
                title = f"{block_name(block)}.whole.{index}"
                self.box(title, news, wholes, S(0), B, queue="params")

    def ending(self) -> None:
        """What happens between steps, when it is due."""
        if self.options.evaluates:
            self.nodes.append(Evaluate("evaluate", tuple(self.parameters)))
        if self.options.saves:
            self.nodes.append(Save("save", tuple(self.parameters)))

    def norm(self) -> str:
        """The sum of the gradients' squares; over parts it is a P(sum) to be boxed."""
        splits = self.options.splits_updates
        dtype = self.tensors[TOTALS].dtype
        self.tensors[NORM] = TensorSpec((1,), dtype, self.layout(P() if splits else B))
        self.nodes.append(Compute(NORM, tuple(self.reduced), (NORM,)))
        if not splits:
            return NORM
        self.tensors[f"{NORM}.sum"] = TensorSpec((1,), dtype, self.layout(B))
        self.box(f"{NORM}.box", [NORM], [f"{NORM}.sum"], P(), B, queue="norm")
        return f"{NORM}.sum"


def _boxed(node: Node) -> tuple[str, ...]:
    return node.inputs if isinstance(node, Boxing) else ()
