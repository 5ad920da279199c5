"""Parameters read outside their block, or in an unusual order: as on one device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from testing.one_device import assert_same_as_one_device
from tests.job.models import NUM_CLASSES
from tests.job.trial import Trial, train_on, train_plainly

W = NUM_CLASSES


class Parcel:
    """An object in which no tensor can be seen."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Block(nn.Module):
    """Has a second method, leaves an auxiliary loss, and hands its weight out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(W)
        self.linear = nn.Linear(W, W)
        self.aux: Tensor | None = None

    def encode(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(self.norm(x))
        return hidden.tanh()

    def forward(self, x: Tensor) -> tuple[Tensor, Parcel, Tensor]:
        self.aux = (self.norm(x) * self.linear.bias).pow(2).mean(1, keepdim=True)
        return self.linear(x), Parcel(self.encode(x)), self.linear.weight.t()


class Odd(nn.Module):
    """Blocks used in the way that a function says."""

    def __init__(self, use: Callable[["Odd", Tensor], Tensor]) -> None:
        super().__init__()
        self.use = use
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(W, W)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.use(self, x))
        return out


def inside_an_object(model: Any, x: Any) -> Any:
    for block in model.blocks:
        _, parcel, _ = block(x)
        x = parcel.x
    return x


def twice(model: Any, x: Any) -> Any:
    return inside_an_object(model, inside_an_object(model, x))


def by_another_method(model: Any, x: Any) -> Any:
    for block in model.blocks:
        x = block.encode(x)
    return x


def side_channel(model: Any, x: Any) -> Any:
    y = inside_an_object(model, x)
    return y + sum(block.aux for block in model.blocks)


def weights_before_and_after(model: Any, x: Any) -> Any:
    early = sum(block.linear.weight.pow(2).sum() for block in model.blocks)
    handed = [block(x)[2] for block in model.blocks]
    y = inside_an_object(model, x)
    for weight in (*handed, model.blocks[0].linear.weight):
        y = y + 0.1 * y @ weight
    return y * early


def without_gradient_too(model: Any, x: Any) -> Any:
    with torch.no_grad():
        shift = inside_an_object(model, x)
    return inside_an_object(model, x) + shift + model.blocks[1].linear.bias


def recomputed_reentrant(model: Any, x: Any) -> Any:
    x = x.clone().requires_grad_()
    return checkpoint(lambda y: by_another_method(model, y), x, use_reentrant=True)


def penalty_before(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    penalty = sum((p**2).sum() for p in model.parameters())
    return F.cross_entropy(model(batch[0]), batch[1]) + 0.01 * penalty


def penalty_after(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    found = F.cross_entropy(model(batch[0]), batch[1])
    return found + 0.01 * sum((p**2).sum() for p in model.parameters())


def gradient_penalty(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x = batch[0].clone().requires_grad_()
    found = F.cross_entropy(model(x), batch[1], reduction="sum")
    (grad,) = torch.autograd.grad(found, x, create_graph=True)
    return found / len(x) + 0.1 * grad.pow(2).sum(1).mean()


MODELS = [
    inside_an_object,
    twice,
    by_another_method,
    side_channel,
    weights_before_and_after,
    without_gradient_too,
    recomputed_reentrant,
]


def check(model: Callable[[], nn.Module], zero: int, loss: Any = None) -> None:
    """Ranks train as torch alone does."""
    trial = Trial(
        model,
        lambda m: SGD(m.parameters(), lr=0.02, momentum=0.9),
        zero=zero,
        steps=3,
        loss=loss,
        bytes_vary=True,
    )
    plain = train_plainly(trial)
    for num_ranks in (1, 3) if zero == 3 else (3,):
        for run in train_on(num_ranks, trial):
            found = {"losses": run.losses, "state": run.state}
            expected = {"losses": plain.losses, "state": plain.state}
            assert_same_as_one_device(found, expected, tolerance=1e-9)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("use", MODELS, ids=lambda use: use.__name__)
def test_blocks_used_oddly(use: Callable[[Odd, Tensor], Tensor], zero: int) -> None:
    check(lambda: Odd(use), zero)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("loss", [penalty_before, penalty_after, gradient_penalty])
def test_losses_that_read_parameters(loss: Any, zero: int) -> None:
    check(lambda: Odd(inside_an_object), zero, loss)


class Normed(nn.Module):
    """Its blocks compute their weights in a hook of their own, before the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_normed() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return x


class _Normalise:
    """A forward pre-hook that computes `weight` from `weight_orig`."""

    def __call__(self, module: Any, _: Any) -> None:
        module.weight = module.weight_orig / module.weight_orig.norm()


def _normed() -> nn.Module:
    made = nn.Linear(W, W)
    weight = made.weight
    del made._parameters["weight"]
    made.register_parameter("weight_orig", nn.Parameter(weight.detach()))
    made.register_forward_pre_hook(_Normalise())
    return made


@pytest.mark.parametrize("zero", [1, 3])
def test_weights_computed_in_a_hook_before_the_forward(zero: int) -> None:
    check(Normed, zero)
