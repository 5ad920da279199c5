"""What a checkpoint holds of a job, and how it goes back in on any number of ranks.

    model      parameters and buffers by name; parts as DTensors S(0)
    optimizer  its state by parameter name, placed like the parameters it belongs to
    progress   step, position in the data, loss scale, scheduler: plain values

A tensor's name and global shape do not depend on the number of ranks or the ZeRO level,
so neither does a checkpoint.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim.lr_scheduler import LRScheduler

from placet.job.checkpoint import load
from placet.job.loader import Position
from placet.placement.dtensor import to_dtensor
from placet.placement.placement import Broadcast
from placet.run.loss_scale import LossScale
from placet.run.optimizers import follows, load_optimizer_state, optimizer_state
from placet.run.planned_training import PlannedTraining
from placet.run.training import Training

AnyTraining: TypeAlias = Training | PlannedTraining


@dataclass(frozen=True)
class Progress:
    """How far a job has come: steps taken, and the next global batch to read."""

    step: int = 0
    position: Position = field(default_factory=Position)


def job_state(
    training: AnyTraining, scheduler: LRScheduler | None, progress: Progress
) -> dict[str, Any]:
    """Everything needed to go on, as nested dicts of tensors and plain values."""
    optimizer = optimizer_state(training.optimizer, _names(training))
    mesh = _device_mesh(training)
    optimizer["state"] = {
        name: {k: _placed(training, name, value, mesh) for k, value in entries.items()}
        for name, entries in optimizer["state"].items()
    }
    return {
        "model": _model_state(training, mesh),
        "optimizer": optimizer,
        "progress": {
            "step": progress.step,
            "position": asdict(progress.position),
            "nominal": training.nominal,
            "scale": asdict(training.scale) if training.scale else {},
            "scheduler": _plain(scheduler.state_dict()) if scheduler else {},
        },
    }


def load_job_state(
    training: AnyTraining, scheduler: LRScheduler | None, path: Path | str
) -> Progress:
    """Fill a job from a checkpoint.

    Raises:
        CheckpointError: see `placet.job.checkpoint.load`.
    """
    training.settle()
    _make_optimizer_state(training)
    state = job_state(training, scheduler, Progress())
    load(path, state)
    if isinstance(training, PlannedTraining):
        training.cut_again()
    optimizer = state["optimizer"]
    optimizer["state"] = {
        name: {key: _local(value) for key, value in entries.items()}
        for name, entries in optimizer["state"].items()
    }
    load_optimizer_state(training.optimizer, _names(training), optimizer)
    saved = state["progress"]
    training.nominal = saved["nominal"]
    if saved["scale"] and training.scale is not None:
        training.scale = LossScale(**saved["scale"])
    if scheduler is not None and saved["scheduler"]:
        scheduler.load_state_dict(saved["scheduler"])
    return Progress(saved["step"], Position(**saved["position"]))


def _names(training: AnyTraining) -> dict[Tensor, str]:
    return {part: name for name, part in training.parts.items()}


def _model_state(training: AnyTraining, mesh: DeviceMesh | None) -> dict[str, Any]:
    """Parameters by name (DTensors where only a part is stored), and buffers."""
    state: dict[str, Any] = {}
    stored = {n for item in training.stored.values() for n in item.parts}
    for name, parameter in training.model.named_parameters():
        if name in stored:
            state[name] = _placed(training, name, training.parts[name].detach(), mesh)
        else:
            state[name] = parameter.detach()
    persistent = training.model.state_dict(keep_vars=True)
    for name, buffer in training.model.named_buffers():
        if name in persistent:
            state[name] = buffer
    return state


def _device_mesh(training: AnyTraining) -> DeviceMesh | None:
    """The job's mesh as DTensor has it, made once a save; None where nothing is split.

    Making one takes milliseconds, and a state has hundreds of tensors.
    """
    if not training.splits or training.wire.num_ranks == 1:
        return None
    device = next(iter(training.parts.values())).device.type
    sizes, axes = training.mesh.sizes, training.mesh.axes
    return init_device_mesh(device, sizes, mesh_dim_names=axes)


def _placed(
    training: AnyTraining, name: str, value: Any, mesh: DeviceMesh | None
) -> Any:
    """A tensor shaped like a parameter's part as a DTensor; others as they are."""
    if mesh is None or not follows(value, training.parts[name]):
        return value
    shape, layout = training.home(name)
    if all(isinstance(p, Broadcast) for p in layout.placements):
        return value
    return to_dtensor(value, shape, layout, mesh)


def _local(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A scheduler's state without what no checkpoint holds, such as functions."""
    kinds = (int, float, bool, str, list, tuple, dict, type(None))
    return {k: v for k, v in state.items() if isinstance(v, kinds)}


def _make_optimizer_state(training: AnyTraining) -> None:
    """Have the optimizer make its state, by a step that changes no parameter."""
    optimizer = training.optimizer
    if any(optimizer.state.values()) or training.needs_closure:
        return
    parts = [p for p in training.parts.values() if p.requires_grad]
    kept = [p.detach().clone() for p in parts]
    for part in parts:
        part.grad = torch.zeros_like(part)
    with training.updating():
        optimizer.step()
    with torch.no_grad():
        for part, value in zip(parts, kept, strict=True):
            part.copy_(value)
            part.grad = None
