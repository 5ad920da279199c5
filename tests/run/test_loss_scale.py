"""The loss scale moves as torch's GradScaler moves, and survives a checkpoint."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from placet.run.loss_scale import LossScale


def test_loss_scale_backs_off_and_grows():
    scale = LossScale(value=8.0, interval=3)
    history = []
    for found_inf in (False, False, True, False, False, False, False):
        scale = scale.update(found_inf)
        history.append((scale.value, scale.good_steps))
    assert history == [(8, 1), (8, 2), (4, 0), (4, 1), (4, 2), (8, 0), (8, 1)]


def test_loss_scale_stays_within_its_bounds():
    scale = LossScale(value=2.0, interval=1, min_value=1.0, max_value=4.0)
    for _ in range(5):
        scale = scale.update(found_inf=True)
    assert scale.value == 1.0
    for _ in range(5):
        scale = scale.update(found_inf=False)
    assert scale.value == 4.0


def test_loss_scale_is_a_value_that_a_checkpoint_keeps():
    scale = LossScale(interval=7)
    moved = scale.update(found_inf=False).update(found_inf=False)
    assert scale == LossScale(interval=7)
    assert LossScale(**json.loads(json.dumps(asdict(moved)))) == moved
    assert moved.good_steps == 2


def test_loss_scale_moves_as_torchs_scaler_does():
    # Update for update, with the scaler's own defaults but a short interval.
    ours = LossScale(interval=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for step in range(30):
        overflows = step % 7 == 3
        scaler.scale((parameter * 0).sum()).backward()
        if overflows:
            parameter.grad = torch.full((1,), torch.inf)
        scaler.step(optimizer)
        scaler.update()
        ours = ours.update(found_inf=not parameter.grad.isfinite().all())
        optimizer.zero_grad()
        assert ours.value == scaler.get_scale(), step


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"growth": 1.0}, "growth > 1"),
        ({"backoff": 1.0}, "0 < backoff < 1"),
        ({"interval": 0}, "interval >= 1"),
        ({"value": 2.0**30}, "min_value <= value <= max_value"),
    ],
)
def test_loss_scale_refuses_what_cannot_work(change: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        replace(LossScale(), **change)
