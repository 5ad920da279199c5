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

from placet.placement.layout import Layout, part_box, relative
from placet.program.blocks import Block, block_name
from placet.program.node import Boxing
from placet.program.program import Program
from placet.run.executor import Binding, Executor, in_place


def cut_parts(
    parameters: Mapping[str, nn.Parameter],
    layout: Layout,
    rank: int,
    *,
    own_storage: bool,
) -> dict[str, nn.Parameter]:
    """This rank's part of each parameter, or the parameter itself if it has no dims.

    Args:
        parameters: the whole ones, by name.
        layout: S(0) on the axis that splits them.
        own_storage: copy the part (level 3), instead of a view of the whole one.
    """
    parts = {}
    for name, parameter in parameters.items():
        shape = tuple(parameter.shape)
        if not shape:
            parts[name] = parameter
            continue
        whole = tuple((0, size) for size in shape)
        part = parameter.detach()[relative(part_box(shape, layout, rank), whole)]
        part = part.clone() if own_storage else part
        trains = parameter.requires_grad  # integers cannot
        parts[name] = nn.Parameter(part, requires_grad=trains)
    return parts


def bind_updated(
    program: Program,
    executor: Executor,
    parameters: Mapping[str, nn.Parameter],
    targets: Mapping[str, nn.Parameter],
) -> dict[str, list[str]]:
    """Bind the boxings that bring updated parts back to whole parameters.

    Returns:
        The boxings that each block (by its name in node names) has to wait for.
    """
    updated: dict[str, list[str]] = {}
    for boxing in program.boxings():
        if not all(name.endswith(".whole") for name in boxing.outputs):
            continue
        names = [name.removesuffix(".whole") for name in boxing.outputs]
        executor.bind(
            boxing.name,
            Binding(
                _values_of([targets[n] for n in names]),
                in_place,
                into=_values_of([parameters[n] for n in names]),
            ),
        )
        block = boxing.name.rsplit(".whole.", 1)[0]
        updated.setdefault(block, []).append(boxing.name)
    return updated


def _values_of(parameters: Sequence[nn.Parameter]) -> Callable[[], list[Tensor]]:
    return lambda: [p.data for p in parameters]


@dataclass
class StoredBlock:
    """A block stored as parts; see NOTE [Parameters that come and go].

    Args:
        parameters, parts: the module's parameters and what is stored of them.
        gathers: names of the boxings that make them whole, per phase.
    """

    block: Block
    parameters: Mapping[str, nn.Parameter]
    parts: Mapping[str, nn.Parameter]
    shapes: Mapping[str, torch.Size]
    gathers: dict[str, list[str]] = field(default_factory=dict)
    buffers: dict[torch.dtype, Tensor] = field(default_factory=dict)
    is_whole: bool = False

    @property
    def name(self) -> str:
        """The block's name in node names."""
        return block_name(self.block)

    def submit(self, executor: Executor, phase: str) -> None:
        """Start gathering, unless the block is whole or on its way already."""
        if not self.is_whole and not any(map(executor.in_flight, self.all_gathers())):
            # The last block has none for its backward: whole, unless called twice.
            for boxing in self.gathers[phase] or self.gathers["forward"]:
                executor.submit(boxing)

    def make_whole(self, executor: Executor, phase: str) -> None:
        """Have the whole parameters in the module."""
        if self.is_whole:
            return
        self.submit(executor, phase)
        for boxing in self.all_gathers():  # a prefetch may be of the other phase
            executor.wait(boxing)
        self.is_whole = True

    def all_gathers(self) -> list[str]:
        """The boxings of both phases."""
        return [boxing for boxings in self.gathers.values() for boxing in boxings]

    def free(self) -> None:
        """Keep the parts only."""
        for name, parameter in self.parameters.items():
            parameter.data = self.parts[name].data
        for buffer in self.buffers.values():
            buffer.untyped_storage().resize_(0)
        self.is_whole = False

    def room(self, names: Sequence[str]) -> list[Tensor]:
        """Memory for whole parameters that are about to arrive."""
        like = self.parts[names[0]]
        sizes = [self.shapes[name].numel() for name in names]
        buffer = self.buffers.get(like.dtype)
        if buffer is None:
            buffer = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
            self.buffers[like.dtype] = buffer
        buffer.untyped_storage().resize_(sum(sizes) * like.dtype.itemsize)
        return [
            piece.view(self.shapes[name])
            for name, piece in zip(names, torch.split(buffer, sizes), strict=True)
        ]

    def show(self, names: Sequence[str], views: Sequence[Tensor]) -> None:
        """Let the module see whole parameters."""
        for name, view in zip(names, views, strict=True):
            self.parameters[name].data = view


def stored_blocks(
    model: nn.Module,
    blocks: Sequence[Block],
    parts: Mapping[str, nn.Parameter],
    shapes: Mapping[str, torch.Size],
) -> dict[str, StoredBlock]:
    """Have a model keep its parameters as parts, block by block.

    Args:
        shapes: of the whole parameters.
        parts: this rank's parts by name; what is not split maps to itself.
    """
    named = dict(model.named_parameters())
    stored = {}
    for block in blocks:
        names = [n for n in block.parameters if parts[n] is not named[n]]
        item = StoredBlock(
            block,
            {n: named[n] for n in names},
            {n: parts[n] for n in names},
            {n: shapes[n] for n in names},
        )
        item.free()
        stored[item.name] = item
    return stored


def bind_gathers(program: Program, executor: Executor, stored: StoredBlock) -> None:
    """Bind the boxings that make one block whole."""
    stored.gathers = {"forward": [], "backward": []}
    for boxing in program.boxings():
        if boxing.queue == "params" and set(boxing.inputs) <= set(stored.parts):
            phase = "forward" if ".gather.forward." in boxing.name else "backward"
            stored.gathers[phase].append(boxing.name)
            _bind_gather(executor, stored, boxing)


def _bind_gather(executor: Executor, stored: StoredBlock, boxing: Boxing) -> None:
    names = boxing.inputs
    binding = Binding(
        _values_of([stored.parts[name] for name in names]),
        lambda views: stored.show(names, views),
        into=lambda: stored.room(names),
    )
    executor.bind(boxing.name, binding)
