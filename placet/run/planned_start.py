"""The start of planned training: a whole model becomes this rank's parts of it."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from placet.placement.layout import replicated
from placet.run.optimizers import repoint
from placet.run.planned_state import own_cut, part_of, state_cutter
from placet.run.planned_training import Divides, PlannedTraining
from placet.wire.interface import Wire


def start_planned(
    name: str,
    model: nn.Module,
    optimizer: Optimizer,
    wire: Wire,
    divide: Divides,
    batch: Any,
    *,
    clip_norm: float | None = None,
    seed: int = 0,
    compile: bool = False,
) -> PlannedTraining:
    """Cut a model's state to this rank's parts; afterwards it trains by its plan.

    Args:
        name: of the job.
        model: a plain module, whole on every rank.
        optimizer: made over the model's parameters; repointed to parts.
        divide: gives the division for each kind of batch; all have the same homes.
        batch: a first one.
        clip_norm: clip gradients to this global norm.
        seed: keys all randomness.
        compile: have Inductor compile the segments.
    """
    first = divide(batch)
    mesh = first.division.mesh
    homes = dict(first.division.homes)
    named = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    for other in (*named, *buffers):
        homes.setdefault(other, replicated(mesh))
    parts = {n: part_of(p, homes[n], wire.rank) for n, p in named.items()}
    repoint(
        optimizer,
        {named[n]: parts[n] for n in named},
        cut=state_cutter(named, homes, wire.rank),
    )
    training = PlannedTraining(
        name,
        model,
        optimizer,
        wire,
        mesh,
        divide,
        parts,
        {n: own_cut(b, homes[n], wire.rank) for n, b in buffers.items()},
        {n: tuple(t.shape) for n, t in (*named.items(), *buffers.items())},
        homes,
        clip_norm,
        seed,
        compile,
    )
    optimizer.register_step_pre_hook(lambda *_: _check_step(training))
    training.start(batch, first)
    return training


def _check_step(training: PlannedTraining) -> None:
    if not training.may_step:
        raise ValueError(
            "optimizer.step() outside of a job's step would let the ranks drift apart; "
            "a job with a plan trains by job.fit()"
        )
