"""Means over a validation set.

    no plan      each rank has its rows; sums of means and counts are added up
    with a plan  a batch is divided as the plan's step is, without backward; every rank
                 has the result

What cannot be captured (a metric that selects rows by their values) is computed without
the plan, on whole parameters.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from placet.errors import CaptureError
from placet.job.data import Data
from placet.job.loader import MicroBatch, part_loader
from placet.job.mean import mean_and_count
from placet.job.plan_job import steps_of
from placet.job.split import moved
from placet.placement.layout import Layout, replicated
from placet.placement.placement import P
from placet.run.planned_training import PlannedTraining
from placet.run.precision import Precision, autocast
from placet.run.reads import ReadsMode
from placet.run.training import Training

Value: TypeAlias = "float | Tensor | tuple[float | Tensor, float | Tensor]"
Metrics: TypeAlias = Callable[[nn.Module, Any], Mapping[str, Value]]


def evaluate(
    training: Training | PlannedTraining,
    data: Data,
    *,
    loss: Callable[[nn.Module, Any], Value] | None,
    metrics: Metrics | None,
    precision: Precision,
) -> dict[str, float]:
    """Weighted means over the whole set, equal on every rank; NaN over no targets.

    Args:
        data: gone through once, in order.
        loss: as the job's; its mean is called "loss".
        metrics: further means by name, each with its count or weighing a batch's rows.

    Raises:
        ValueError: neither loss nor metrics is there.
    """
    if loss is None and metrics is None:
        raise ValueError("nothing to evaluate: give the job a loss or metrics")
    if isinstance(training, PlannedTraining):
        found = _by_plan(training, data, loss, metrics)
        if found is not None:
            return found
    training.settle()
    sums: dict[str, list[float]] = {}
    wire, model = training.wire, training.model
    ordered = replace(data, shuffle=False, drop_last=False)
    was_training = model.training
    reads = training.reads
    watch = nullcontext() if reads is None else ReadsMode(reads)
    model.eval()
    try:
        for part in part_loader(ordered, wire.rank, wire.num_ranks, num_epochs=1):
            for micro in part.micro_batches:
                batch = moved(micro.batch, training.device)
                with torch.no_grad(), autocast(precision), watch:
                    values = _values(loss, metrics, model, batch)
                _add(sums, values, micro)
    finally:
        model.train(was_training)
        training.free()
    return _over_ranks(training, sums)


def _values(
    loss: Callable[[nn.Module, Any], Value] | None,
    metrics: Metrics | None,
    model: nn.Module,
    batch: Any,
) -> dict[str, Value]:
    """Means of one batch by name."""
    found = dict(metrics(model, batch)) if metrics else {}
    if loss is not None and "loss" not in found:
        found = {"loss": loss(model, batch), **found}
    return found


def _add(
    sums: dict[str, list[float]], values: Mapping[str, Value], micro: MicroBatch
) -> None:
    """Add a batch's means, each times its count, and the counts."""
    for name, value in values.items():
        mean, count = mean_and_count(value, micro.num_rows, f"{name!r}")
        count = 0.0 if micro.is_dummy else count
        total = sums.setdefault(name, [0.0, 0.0])
        total[0] += float(mean) * count if count else 0.0
        total[1] += count


def _by_plan(
    training: PlannedTraining,
    data: Data,
    loss: Callable[[nn.Module, Any], Value] | None,
    metrics: Metrics | None,
) -> dict[str, float] | None:
    """The means, each batch divided over the ranks; None if that cannot be captured."""
    name = (loss, metrics)
    steps = steps_of(training)
    if name in steps.not_captured:
        return None
    divide = steps.measuring(partial(_values, loss, metrics))
    sums: dict[str, list[float]] = {}
    ordered = replace(data, shuffle=False, drop_last=False)
    for part in part_loader(ordered, 0, 1, num_epochs=1):
        (micro,) = part.micro_batches
        batch = moved(micro.batch, training.device)
        try:
            values = training.measure(batch, divide, name)
        except CaptureError:
            steps.not_captured.add(name)
            return None
        _add(sums, values, micro)
    return {
        name: total / count if count else math.nan
        for name, (total, count) in sums.items()
    }


def _over_ranks(
    training: Training | PlannedTraining, sums: dict[str, list[float]]
) -> dict[str, float]:
    local = torch.tensor(list(sums.values()), dtype=torch.float64).flatten()
    mesh = training.mesh
    src, dst = Layout(mesh, [P()] * len(mesh.axes)), replicated(mesh)
    totals = training.executor.box_now("metrics", local, src, dst).view(-1, 2).tolist()
    return {
        name: total / count if count else math.nan
        for name, (total, count) in zip(sums, totals, strict=True)
    }
