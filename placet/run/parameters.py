"""Where a job's parameters live between their uses.

    whole    level 0: every rank has every parameter; the optimizer updates them
    updated  level 1, 2: the optimizer updates parts, which are views of the whole ones;
             the parts are boxed back to B and waited for by the next forward
    stored   level 3: only parts are stored; a block's whole parameters exist from just
             before its forward or backward to just after

# NOTE [Parameters that come and go]
At level 3 a module keeps its own nn.Parameter objects (ties and the user's references
stay valid) and only their `.data` changes: the part, or a view of the block's buffer.
Tensors that autograd saved are views of that buffer, so it must come back as the *same*
storage: it is resized to nothing and to full size, never replaced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from placet.placement.layout import part_box, relative
from placet.program.blocks import Block
from placet.program.data_parallel import block_name
from placet.program.node import Boxing
from placet.program.program import Program
from placet.run.executor import Binding, Executor


def cut_parts(
    program: Program, parameters: Mapping[str, nn.Parameter], rank: int
) -> dict[str, nn.Parameter]:
    """What the optimizer of this rank updates: a view of its part, or the whole.

    Args:
        parameters: the whole ones, by name.
    """
    targets = {}
    for name, parameter in parameters.items():
        new = program.tensors.get(f"{name}.new")
        box = new and part_box(new.shape, new.layout, rank)
        whole = tuple((0, size) for size in parameter.shape)
        if new is None or box is None or box == whole:
            targets[name] = parameter
            continue
        part = parameter.detach()[relative(box, whole)]
        targets[name] = nn.Parameter(part, requires_grad=parameter.requires_grad)
    return targets


def bind_updated(
    program: Program,
    executor: Executor,
    parameters: Mapping[str, nn.Parameter],
    targets: Mapping[str, nn.Parameter],
) -> None:
    """Bind the boxings that bring updated parts back to whole parameters."""
    for boxing in program.boxings():
        if not all(name.endswith(".whole") for name in boxing.outputs):
            continue
        names = [name.removesuffix(".whole") for name in boxing.outputs]
        executor.bind(
            boxing.name,
            Binding(
                _parts_of([targets[n] for n in names]),
                _copy_into([parameters[n] for n in names]),
            ),
        )


def _parts_of(parts: Sequence[nn.Parameter]) -> Callable[[], list[Tensor]]:
    return lambda: [part.detach() for part in parts]


def _copy_into(wholes: Sequence[nn.Parameter]) -> Callable[[Sequence[Tensor]], None]:
    def sink(values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_([w.data for w in wholes], list(values))

    return sink


@dataclass
class StoredBlock:
    """A block whose parameters are stored as parts; see NOTE [Parameters that come and go].

    Args:
        parameters, parts: the module's parameters and what is stored of them.
        gathers: names of the boxings that make them whole, per phase.
    """

    block: Block
    parameters: list[nn.Parameter]
    parts: list[nn.Parameter]
    shapes: list[torch.Size]
    gathers: dict[str, list[str]] = field(default_factory=dict)
    buffers: dict[torch.dtype, Tensor] = field(default_factory=dict)
    is_whole: bool = False

    @property
    def name(self) -> str:
        """The block's name in node names."""
        return block_name(self.block)

    def submit(self, executor: Executor, phase: str) -> None:
        """Start gathering, unless the block is whole already."""
        if not self.is_whole:
            for boxing in self.gathers[phase]:
                executor.submit(boxing)

    def make_whole(self, executor: Executor, phase: str) -> None:
        """Have the whole parameters in the module."""
        if self.is_whole:
            return
        self.submit(executor, phase)
        for other in self.gathers.values():  # a prefetch may carry the other phase's name
            for boxing in other:
                executor.wait(boxing)
        self.is_whole = True

    def free(self) -> None:
        """Keep the parts only."""
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            parameter.data = part.data
        for buffer in self.buffers.values():
            buffer.untyped_storage().resize_(0)
        self.is_whole = False

    def take(self, indices: Sequence[int], values: Sequence[Tensor]) -> None:
        """Store whole parameters that have arrived, and show them to the module."""
        dtype = self.parameters[indices[0]].dtype
        sizes = [self.shapes[i].numel() for i in indices]
        buffer = self.buffers.get(dtype)
        if buffer is None:
            device = self.parameters[indices[0]].device
            buffer = torch.empty(sum(sizes), dtype=dtype, device=device)
            self.buffers[dtype] = buffer
        buffer.untyped_storage().resize_(sum(sizes) * dtype.itemsize)
        views = [
            piece.view(self.shapes[i])
            for i, piece in zip(indices, buffer.split(sizes), strict=True)
        ]
        torch._foreach_copy_(views, list(values))
        for i, view in zip(indices, views, strict=True):
            self.parameters[i].data = view


def store_parts(
    program: Program,
    executor: Executor,
    model: nn.Module,
    blocks: Sequence[Block],
    parts: Mapping[str, nn.Parameter],
) -> list[StoredBlock]:
    """Turn a model's parameters into parts, and bind the gathers of its blocks.

    Args:
        parts: this rank's parts by name; parameters that are not split map to themselves.
    """
    named = dict(model.named_parameters())
    stored = []
    for block in blocks:
        names = [n for n in block.parameters if parts[n] is not named[n]]
        item = StoredBlock(
            block,
            [named[n] for n in names],
            [parts[n] for n in names],
            [torch.Size(program.tensors[n].shape) for n in names],
            {"forward": [], "backward": []},
        )
        where = {name: i for i, name in enumerate(names)}
        for boxing in program.boxings():
            if boxing.queue == "params" and set(boxing.inputs) <= set(names):
                phase = "forward" if ".gather.forward." in boxing.name else "backward"
                item.gathers[phase].append(boxing.name)
                _bind_gather(executor, item, boxing, where)
        item.free()
        stored.append(item)
    return stored


def _bind_gather(
    executor: Executor, item: StoredBlock, boxing: Boxing, where: Mapping[str, int]
) -> None:
    indices = [where[name] for name in boxing.inputs]

    def source() -> list[Tensor]:
        return [item.parts[i].detach() for i in indices]

    def sink(values: Sequence[Tensor]) -> None:
        item.take(indices, values)

    executor.bind(boxing.name, Binding(source, sink))
