"""Pack a step's payload out of local tensors, and unpack its arrival, with few calls.

Copies are made only where needed: a payload that is one contiguous tensor is a view of
it, and an output that is one run of the arrival is a view of that.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from placet.boxing.lowered import Lowered
from placet.placement.layout import Box, Shape

Tensors = tuple[Tensor, ...]
"""Local tensors, one per global one; () on a rank that holds no part."""


def pack(
    lowered: Lowered, tensors: Tensors, device: torch.device
) -> tuple[Tensor, bool]:
    """The payload, and whether it is a copy of the tensors."""
    recipe = lowered.recipe
    pieces: list[Sequence[Tensor]] = []
    for tensor, cut in zip(tensors, recipe.cuts, strict=True):
        if not cut.boxes:
            pieces.append(())
        elif cut.sizes is None:
            pieces.append([tensor[_slices(box)].reshape(-1) for box in cut.boxes])
        elif len(cut.sizes) == 1:
            pieces.append((tensor.reshape(-1),))
        else:
            pieces.append(tensor.reshape(-1).split_with_sizes(cut.sizes))
    ordered = [pieces[tensor][i] for tensor, i in recipe.order]
    if not ordered:
        payload = torch.empty(0, dtype=lowered.dtype, device=device)
        return _as_bytes(payload), True
    if len(ordered) == 1:
        payload = ordered[0].contiguous().detach()
        owner = tensors[recipe.order[0][0]]
        packed = payload.data_ptr() != owner.data_ptr()
        return _as_bytes(payload), packed
    return _as_bytes(torch.cat(ordered)), True


def _as_bytes(payload: Tensor) -> Tensor:
    return payload.view(torch.uint8) if payload.dtype == torch.bool else payload


def unpack(
    lowered: Lowered,
    tensors: Tensors,
    arrival: Tensor | None,
    device: torch.device,
    into: Sequence[Tensor] | None = None,
) -> Tensors:
    """The outputs, written into `into` if given; else the arrival may become part."""
    if lowered.dst_shapes is None:
        return ()
    recipe = lowered.recipe
    segments: Sequence[Tensor] = ()
    if arrival is not None:
        typed = arrival.view(lowered.dtype)
        if typed.numel() and lowered.unpack and _scales_at_once(lowered):
            _scale(typed, lowered)
        segments = typed.split_with_sizes(recipe.arrival_sizes)
    outs = []
    for i, shape in enumerate(lowered.dst_shapes):
        join = recipe.joins[i]
        if join.tiles and len(join.places) == 1:
            out = segments[join.places[0]].view(shape)
        elif join.tiles and join.places:
            pieces = [segments[place] for place in join.places]
            if into is not None and into[i].is_contiguous():
                outs.append(into[i])
                torch.cat(pieces, out=into[i].view(-1))
                continue
            out = torch.cat(pieces).view(shape)
        elif _passes(lowered, i, shape):
            source = tensors[i]
            out = source.detach()
            out = out.clone() if lowered.multiply != lowered.divide else out
        else:
            out = _assemble(lowered, i, tensors, segments, device)
        outs.append(out)
    if lowered.multiply != lowered.divide and not _scales_at_once(lowered):
        for out in outs:
            _scale(out, lowered)
    if into is None:
        return tuple(outs)
    for given, out in zip(into, outs, strict=True):
        if given is not out:
            given.copy_(out)
    return tuple(into)


def _scales_at_once(lowered: Lowered) -> bool:
    """Whether all of each output comes out of the arrival."""
    return all(not p for p in lowered.recipe.keeps) and lowered.fill is None


def _scale(tensor: Tensor, lowered: Lowered) -> None:
    if lowered.multiply != 1:
        tensor.mul_(lowered.multiply)
    if lowered.divide != 1:
        tensor.div_(lowered.divide)


def _passes(lowered: Lowered, output: int, shape: Shape) -> bool:
    """Whether an output is the source tensor as it is."""
    keeps = lowered.recipe.keeps[output]
    if len(keeps) != 1 or lowered.src_shapes is None or lowered.accumulate is not None:
        return False
    box = tuple((0, size) for size in shape)
    old, new = keeps[0]
    return old.box == box == new.box and lowered.src_shapes[old.tensor] == shape


def _assemble(
    lowered: Lowered,
    output: int,
    tensors: Tensors,
    segments: Sequence[Tensor],
    device: torch.device,
) -> Tensor:
    """An output written piece by piece."""
    assert lowered.dst_shapes is not None
    shape = lowered.dst_shapes[output]
    out = torch.empty(shape, dtype=lowered.dtype, device=device)
    if lowered.fill is not None:
        out.fill_(lowered.fill)
    for old, new in lowered.recipe.keeps[output]:
        source = tensors[old.tensor]
        _put(out[_slices(new.box)], source[_slices(old.box)], lowered)
    join = lowered.recipe.joins[output]
    for place, box in zip(join.places, join.boxes, strict=True):
        target = out[_slices(box)]
        _put(target, segments[place].view(target.shape), lowered)
    return out


def _put(target: Tensor, value: Tensor, lowered: Lowered) -> None:
    if lowered.accumulate is None:
        target.copy_(value)
    elif lowered.accumulate == "sum":
        target.add_(value)
    elif lowered.accumulate == "max":
        torch.maximum(target, value, out=target)
    else:
        torch.minimum(target, value, out=target)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
