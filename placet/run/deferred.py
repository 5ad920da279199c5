"""Build a model without memory, and fill it later, part by part.

    model, recording = deferred(lambda: GPT(...))     no parameter has memory yet
    torch.manual_seed(0)
    materialise(model, recording, keep)               as if built after that seed

The constructor runs once on fake tensors; each operator that writes memory is recorded
with the storages it reads and writes. `materialise` runs the record on real memory, a
tensor or so at a time, and hands each finished tensor to `keep`, which takes this
rank's part.

What is recorded is a straight line: Python control flow is that of the one run. A value
read with `.item()` is computed on the spot if no random number is in it, and is an
error otherwise.

Source: torchdistx, deferred_init; differs in replaying in the order of the generators,
so that values are bit-equal to a plain construction, and in handing tensors over one by
one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from placet.run.deferred_ops import Recording, TensorRef
from placet.run.deferred_record import GeneratorWatch, Recorder, meta_like
from placet.run.deferred_replay import Memory, replay
from placet.torch_private.dispatch import (
    FakeTensorMode,
    NeedsValues,
    is_fake,
    own_attributes,
    recordable_calls,
)

M = TypeVar("M", bound=nn.Module)


def deferred(build: Callable[[], M]) -> tuple[M, Recording]:
    """Run a model's constructor without memory.

    Tensors made by torch.tensor or from numpy are real and stay so; everything else
    comes to the meta device, whatever device the constructor names. Generators are left
    as they were.

    Args:
        build: makes the model.

    Returns:
        The model, with meta parameters and buffers, and the record for `materialise`.

    Raises:
        ValueError: the constructor needs a random value in Python, writes deferred
            values into a real tensor, or has parameters without a shape (lazy modules).
    """
    recording = Recording()
    watch = GeneratorWatch()
    fake_mode = FakeTensorMode()
    recorder = Recorder(recording, watch, fake_mode)
    try:
        with fake_mode, recorder, recordable_calls(recorder.call_fill):
            model = build()
        recording.end_state = watch.change(torch.default_generator)
    except NeedsValues as error:
        raise ValueError(f"the constructor runs {error}, which {_NO_VALUES}") from error
    except RuntimeError as error:
        if "is not supported for tensor subclasses" in str(error):
            raise ValueError(
                f"the constructor calls .numpy(), which {_NO_VALUES}"
            ) from error
        if "already associated to a python object of type FakeTensor" in str(error):
            raise ValueError(
                "a lazy module, or a parameter of a class of its own, cannot be "
                "deferred: name the sizes, or use torch.nn.Parameter"
            ) from error
        raise
    finally:
        watch.restore()
    for place in _places(model):
        if is_fake(place.tensor):
            blank = _put(place, meta_like(place.tensor), own_attributes(place.tensor))
            recording.finals[id(blank)] = blank, recording.ref(place.tensor)
    return model, recording


_NO_VALUES = (
    "needs a tensor's values, and a deferred tensor has none yet: compute them by "
    "torch.tensor, numpy or plain Python"
)


def materialise(
    model: nn.Module,
    recording: Recording,
    keep: Callable[[str, Tensor], Tensor] | None = None,
) -> Memory:
    """Fill a deferred model, tensor by tensor, as a plain construction would have.

    Seed the default generator before; it ends as a plain construction leaves it. Tied
    parameters stay tied, and are handed over once, by their first name.

    >>> model, recording = deferred(lambda: nn.Linear(1000, 1000))
    >>> materialise(model, recording, lambda name, full: full.chunk(4)[rank])

    Args:
        model: what `deferred` returned; parameters and buffers are replaced, so make
            optimizers afterwards.
        recording: its record.
        keep: (name, full tensor) -> what this rank stores; the whole when left out.
            Called in the same order on all ranks, for parameters and buffers; tensors
            in plain attributes of modules are whole.

    Returns:
        What the replay allocated: `peak_bytes` above what was kept.
    """
    places = _places(model)
    finals: dict[int, list[tuple[_Place, TensorRef]]] = {}
    for place in places:
        if place.tensor.is_meta:
            known = recording.finals.get(id(place.tensor))
            if known is None:
                raise ValueError(
                    f"{place.name} is on the meta device, but not made by this record: "
                    "give materialise the model and the record of one call of deferred"
                )
            finals.setdefault(known[1].storage, []).append((place, known[1]))

    def put(place: _Place, full: Tensor) -> None:
        kept = keep(place.name, full) if keep and place.is_registered else full
        if _shares_more(kept, full):
            kept = kept.clone()  # a view would hold the whole
        _put(place, kept, vars(place.tensor))

    def done(storage: int, memory: Memory) -> None:
        for place, ref in finals[storage]:
            put(place, memory.view(ref))

    memory = replay(recording, finals.keys(), done)
    for place in places:
        if place.is_registered and not place.tensor.is_meta:
            put(place, place.tensor.detach())
    return memory


@dataclass(frozen=True, eq=False)
class _Place:
    """A tensor of a model, and every (owner, key) at which it stands."""

    name: str
    tensor: Tensor
    is_registered: bool
    owners: list[tuple[Any, Any]]


def _places(model: nn.Module) -> list[_Place]:
    """A model's parameters, buffers, and tensors in plain attributes, each once."""
    places: dict[int, _Place] = {}

    def add(name: str, tensor: Any, is_registered: bool, owner: Any, key: Any) -> None:
        if isinstance(tensor, Tensor):
            place = _Place(name, tensor, is_registered, [])
            places.setdefault(id(tensor), place).owners.append((owner, key))

    for prefix, module in model.named_modules():
        start = f"{prefix}." if prefix else ""
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            add(start + key, tensor, True, module, key)
    for prefix, module in model.named_modules():
        start = f"{prefix}." if prefix else ""
        for key, value in vars(module).items():
            if key.startswith("_flat_weights") or key in ("_parameters", "_buffers"):
                continue
            add(start + key, value, False, module, key)
            if isinstance(value, list | dict):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for k, item in items:
                    add(f"{start}{key}.{k}", item, False, value, k)
    return list(places.values())


def _shares_more(kept: Tensor, full: Tensor) -> bool:
    """Whether `kept` is a view that holds memory beyond its own elements."""
    if kept.layout is not torch.strided or type(kept) is not Tensor:
        return False
    storage = kept.untyped_storage()
    same = storage.data_ptr() == full.untyped_storage().data_ptr()
    return same and storage.nbytes() > kept.nbytes


def _put(place: _Place, new: Tensor, attributes: dict[str, Any]) -> Tensor:
    """Set a tensor of the model wherever it stands; returns it as it stands there."""
    old = place.tensor
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
        vars(new).update(attributes)
    elif old.requires_grad:
        new.requires_grad_()
    for owner, key in place.owners:
        if isinstance(owner, nn.Module):
            setattr(owner, key, new)
        else:
            owner[key] = new
    return new
