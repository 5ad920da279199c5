"""Means over a validation set whose rows are split over the ranks."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from placet.job.data import Data
from placet.job.loader import part_loader
from placet.job.mean import mean_and_count
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
                    found = dict(metrics(model, batch)) if metrics else {}
                    if loss is not None and "loss" not in found:
                        found = {"loss": loss(model, batch), **found}
                for name, value in found.items():
                    mean, count = mean_and_count(value, micro.num_rows, f"{name!r}")
                    count = 0.0 if micro.is_dummy else count
                    total = sums.setdefault(name, [0.0, 0.0])
                    total[0] += float(mean) * count if count else 0.0
                    total[1] += count
    finally:
        model.train(was_training)
        training.free()
    return _over_ranks(training, sums)


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
