"""Models larger than a worker: built without memory, filled part by part.

    job = Job(Deferred(lambda: GPT(width=8192)), loss, AdamW, data, zero=3)

Each rank runs the constructor on the meta device, then replays its initialisation one
tensor at a time and keeps its own part, so that values are bit-equal to building the
model plainly after the same torch.manual_seed, and the peak is about one whole tensor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from placet.placement.layout import Layout, part_box, relative
from placet.run.deferred import deferred, materialise
from placet.run.safetensors_stream import Wanted, stream_safetensors


@dataclass(frozen=True)
class Deferred:
    """How to build a model, when it is known which parts are wanted.

    Args:
        build: makes the model, as on one device.
        weights: safetensors files (or an index of them) to take values from instead of
            initialising; names and shapes as in the model's state dict.
    """

    build: Callable[[], nn.Module]
    weights: Sequence[Path | str] = ()


@dataclass(frozen=True)
class Outline:
    """A model on the meta device, and the shapes of its whole parameters."""

    model: nn.Module
    fill: Callable[[Layout | None, int], None]
    shapes: Mapping[str, torch.Size]


def outline(source: Deferred) -> Outline:
    """Build a deferred model without memory; `fill(layout, rank)` gives it values.

    `layout` says how parameters are split, None leaves them whole.
    """
    model, recording = deferred(source.build)
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def fill(layout: Layout | None, rank: int) -> None:
        def keep(name: str, full: Tensor) -> Tensor:
            if layout is None or name not in shapes or not full.dim():
                return full
            whole = tuple((0, size) for size in full.shape)
            box = part_box(tuple(full.shape), layout, rank)
            return full[relative(box, whole)].clone()

        materialise(model, recording, keep)
        if source.weights:
            _take_weights(model, source.weights, shapes, layout, rank)

    return Outline(model, fill, shapes)


def _take_weights(
    model: nn.Module,
    paths: Sequence[Path | str],
    shapes: Mapping[str, torch.Size],
    layout: Layout | None,
    rank: int,
) -> None:
    persistent = model.state_dict(keep_vars=True)
    buffers = {n: b for n, b in model.named_buffers() if n in persistent}
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **buffers}
    wanted = {}
    for name, tensor in tensors.items():
        shape = tuple(shapes.get(name, tensor.shape))
        if layout is None or not shape or name in buffers:
            wanted[name] = Wanted.whole(shape)
        else:
            wanted[name] = Wanted(shape, part_box(shape, layout, rank))
    with torch.no_grad():
        for name, value in stream_safetensors(paths, wanted).items():
            tensors[name].copy_(value)
