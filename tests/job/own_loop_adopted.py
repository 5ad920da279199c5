"""The stranger's loop on any number of ranks; all else stays in its own file."""

import torch
import torch.nn.functional as F
from torch import nn

from placet.job.job import Job
from tests.job.own_loop_plain import (
    CLIP,
    MICRO_STEPS,
    NUM_STEPS,
    estimate_loss,
    get_batch,
    get_lr,
)


def train(model: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    job = Job(model, optimizer=optimizer, accumulate=MICRO_STEPS, clip_norm=CLIP)
    validation = []
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        if step % 5 == 0:
            validation.append(estimate_loss(model))
        for micro_step in range(MICRO_STEPS):
            x, y = job.part(get_batch(step * MICRO_STEPS + micro_step))
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            job.backward(loss)
        job.update()
    validation.append(estimate_loss(model))
    return validation
