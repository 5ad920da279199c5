"""Optimizers: which may work on parts, repointing, and state by parameter name."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)
from torch.optim.lr_scheduler import CosineAnnealingLR

from placet.run.optimizers import (
    follows,
    is_elementwise,
    load_optimizer_state,
    optimizer_state,
    repoint,
    verdict,
)
from testing.optimizers import Lamb, Stranger


class Lion(Stranger):
    """Lion (Chen et al., arXiv:2302.06675): element-wise, and unknown to placet."""

    def change(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        average = state.setdefault("average", torch.zeros_like(p))
        update = average.lerp(p.grad, 0.1).sign_()
        average.lerp_(p.grad, 0.01)
        return update


class ClippedSgd(Stranger):
    """Element-wise while gradients are small, and not when it clips their norm."""

    def change(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return p.grad * (group["clip"] / p.grad.norm()).clamp(max=1.0).nan_to_num(0.0)


class NoisySgd(Stranger):
    """Draws noise from the default generator."""

    def change(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return p.grad + torch.randn_like(p)


class NeedsClosure(Stranger):
    """Cannot be probed."""

    def step(self, closure: Callable[[], None]) -> None:  # type: ignore[override]
        closure()


class OtherSgd(SGD):
    """A subclass may override anything, so it is probed."""

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad -= p.grad.mean()
        SGD.step(self, closure)


class SameSgd(SGD):
    """A subclass that changes nothing."""


def params(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [
        nn.Parameter(torch.randn(s, dtype=torch.float64, generator=generator))
        for s in shapes
    ]


ELEMENTWISE: list[Callable[[list[nn.Parameter]], Optimizer]] = [
    lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda p: Adam(p, amsgrad=True),
    lambda p: AdamW(p, maximize=True),
    Adagrad,
    Adadelta,
    Adamax,
    NAdam,
    RAdam,
    lambda p: RMSprop(p, centered=True, momentum=0.5),
    Rprop,
    ASGD,
    Lion,
    lambda p: ClippedSgd(p, clip=1e9),
    lambda p: SameSgd(p, 0.1, momentum=0.5),
]
WHOLE: list[Callable[[list[nn.Parameter]], Optimizer]] = [
    LBFGS,
    lambda p: Muon(p, lr=0.1),
    Adafactor,
    SparseAdam,
    Lamb,
    lambda p: ClippedSgd(p, clip=5.0),
    NoisySgd,
    NeedsClosure,
    lambda p: OtherSgd(p, 0.1),
]


@pytest.mark.parametrize("make", ELEMENTWISE)
def test_elementwise_optimizers_are_found(make: Callable[..., Optimizer]):
    optimizer = make(params((4, 3)))
    assert is_elementwise(optimizer), verdict(optimizer)


@pytest.mark.parametrize("make", WHOLE)
def test_other_optimizers_are_found(make: Callable[..., Optimizer]):
    optimizer = make(params((4, 3)))
    assert not is_elementwise(optimizer), verdict(optimizer)
    assert verdict(optimizer).reason.startswith(type(optimizer).__name__)


@pytest.mark.parametrize("make", ELEMENTWISE)
def test_elementwise_optimizers_train_parts_as_the_whole(
    make: Callable[..., Optimizer],
):
    # What is_elementwise promises, for each class that is believed without a probe.
    whole, parts = params((5, 3), (4,)), params((5, 3), (4,))
    pieces = [[nn.Parameter(p.detach()[s]) for p in parts] for s in CUTS]
    optimizers = [make(p) for p in (whole, *pieces)]
    for step in range(6):
        for p, *split in zip(whole, *pieces, strict=True):
            p.grad = torch.randn(p.shape, dtype=p.dtype) * 10.0 ** (step % 3 - 1)
            for cut, part in zip(CUTS, split, strict=True):
                part.grad = p.grad[cut].clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, *split in zip(whole, *pieces, strict=True):
        torch.testing.assert_close(torch.cat(split), p.data, rtol=1e-12, atol=1e-12)


CUTS = (slice(0, 2), slice(2, 4), slice(4, None))


def test_a_probe_asks_once_and_leaves_randomness_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = verdict(NoisySgd(params((2, 2)), lr=0.123))
    assert torch.equal(torch.get_rng_state(), before)
    assert verdict(NoisySgd(params((3,)), lr=0.123)) is first
    assert (
        "could not be probed: TypeError" in verdict(NeedsClosure(params((2,)))).reason
    )


def test_a_probe_looks_at_each_groups_options():
    a, b = params((4, 3), (4,))
    optimizer = ClippedSgd([{"params": [a]}, {"params": [b], "clip": 5.0}], clip=1e9)
    assert not is_elementwise(optimizer)


def test_repointed_optimizer_trains_parts():
    whole = params((5, 3), (4,))
    model = params((5, 3), (4,))
    groups = [{"params": [model[0]], "lr": 0.5}, {"params": [model[1]]}]
    optimizer = AdamW(groups, lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, 10)
    reference = AdamW([{"params": [whole[0]], "lr": 0.5}, {"params": [whole[1]]}], 0.1)
    reference_scheduler = CosineAnnealingLR(reference, 10)
    parts = [nn.Parameter(p.detach()[:2].clone()) for p in model]
    repoint(optimizer, dict(zip(model, parts, strict=True)))
    for _ in range(4):
        for p, part in zip(whole, parts, strict=True):
            p.grad = torch.randn_like(p)
            part.grad = p.grad[:2].clone()
        for step in (optimizer, reference, scheduler, reference_scheduler):
            step.step()
    for p, part in zip(whole, parts, strict=True):
        torch.testing.assert_close(part.data, p.data[:2], rtol=1e-12, atol=1e-12)
    assert set(optimizer.state) == set(parts)


def test_repoint_moves_state_that_fits_and_cuts_what_does_not():
    a, b = params((5, 3), (4,))
    optimizer = Adam([a, b])
    for p in (a, b):
        p.grad = torch.ones_like(p)
    optimizer.step()
    first = optimizer.state[a]["exp_avg"]
    same = nn.Parameter(a.detach().clone())
    repoint(optimizer, {a: same})
    assert optimizer.param_groups[0]["params"] == [same, b]
    assert optimizer.state[same]["exp_avg"] is first
    assert a not in optimizer.state
    part = nn.Parameter(a.detach()[1:3].clone())
    with pytest.raises(ValueError, match=r"'exp_avg' of a parameter \(5, 3\)"):
        repoint(optimizer, {same: part})
    assert optimizer.param_groups[0]["params"][0] is same
    assert same in optimizer.state
    repoint(optimizer, {same: part}, cut=lambda value, old: value[1:3].clone())
    assert torch.equal(optimizer.state[part]["exp_avg"], first[1:3])
    assert optimizer.state[part]["step"] == 1


def train_once(optimizer: Optimizer, model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 4, dtype=torch.float64, generator=generator)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(inputs).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def trained(make: Callable[..., Optimizer], model: nn.Module) -> Optimizer:
    optimizer = make(model.parameters())
    for _ in range(3):
        train_once(optimizer, model)
    return optimizer


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def names(model: nn.Module) -> dict[Tensor, str]:
    return {p: name for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, 0.1, momentum=0.9),
        lambda p: SGD(p, 0.1),
        lambda p: AdamW(p, amsgrad=True),
        NAdam,
        ASGD,
        Adafactor,
        lambda p: LBFGS(p, max_iter=3),
        Lamb,
    ],
)
def test_optimizer_state_by_name_resumes_exactly(make: Callable[..., Optimizer]):
    model = network()
    optimizer = trained(make, model)
    saved = copy.deepcopy(optimizer_state(optimizer, names(model)))
    if saved["state"]:
        assert set(saved["state"]) <= set(dict(model.named_parameters()))
    twin = copy.deepcopy(model)
    other = make(twin.parameters())
    load_optimizer_state(other, names(twin), saved)
    train_once(optimizer, model)
    train_once(other, twin)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_optimizer_state_survives_another_order_of_parameters():
    model = network()
    saved = optimizer_state(trained(Adam, model), names(model))
    saved["groups"][0]["lr"] = 0.25
    backwards = Adam(reversed(list(model.parameters())))
    load_optimizer_state(backwards, names(model), saved)
    assert backwards.param_groups[0]["lr"] == 0.25
    for p, name in names(model).items():
        assert torch.equal(
            backwards.state[p]["exp_avg"], saved["state"][name]["exp_avg"]
        )
        assert backwards.state[p]["step"] == 3
    again = optimizer_state(backwards, names(model))
    assert again["groups"][0]["params"] == saved["groups"][0]["params"][::-1]


def test_optimizer_state_of_named_groups_keeps_its_own_names():
    model = network()
    made = AdamW(model.named_parameters())
    saved = optimizer_state(made, names(model))
    other = AdamW(reversed(list(model.named_parameters())))
    load_optimizer_state(other, names(model), saved)
    group = other.param_groups[0]
    assert [names(model)[p] for p in group["params"]] == group["param_names"]


def test_optimizer_state_refuses_other_parameters_and_groups():
    model = network()
    saved = optimizer_state(trained(Adam, model), names(model))
    weights = [p for p in model.parameters() if p.dim() == 2]
    biases = [p for p in model.parameters() if p.dim() == 1]
    with pytest.raises(ValueError, match=r"unknown \['0.bias', '2.bias'\]"):
        load_optimizer_state(Adam(weights), names(model), saved)
    grouped = Adam([{"params": weights}, {"params": biases}])
    with pytest.raises(ValueError, match="no saved group has the parameters"):
        load_optimizer_state(grouped, names(model), saved)
    with pytest.raises(ValueError, match=r"shape \(7,\) that has no name"):
        optimizer_state(Adam(params((7,))), names(model))


def test_entries_that_follow_their_parameter():
    weight = torch.zeros(3, 2)
    assert follows(torch.ones(3, 2), weight)
    assert not follows(torch.ones(3), weight)
    assert not follows(torch.ones(()), torch.zeros(()))
    assert not follows(5, weight)
    assert follows(torch.ones(0, 2), torch.zeros(0, 2))
