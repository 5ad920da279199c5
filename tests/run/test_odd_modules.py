"""Odd plain modules: a plan's training steps are those of one device."""

import copy
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from placet.placement.mesh import Mesh
from placet.program.capture import capture
from placet.program.normalise.normalise import normalise
from placet.run.planned_start import start_planned
from placet.run.planned_training import Divided
from placet.wire.interface import Wire
from testing.planned import random_division
from testing.ranks import run_threads

F64 = torch.float64
TURN = Lock()
"""torch traces one step at a time."""


class Made(nn.Module):
    """Some parts, and a forward that uses them."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.does = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


def linear(width: int = 6) -> nn.Linear:
    return nn.Linear(6, width, dtype=F64)


def tied() -> nn.Module:
    table, head = nn.Embedding(6, 6, dtype=F64), linear()
    head.weight = table.weight
    return Made(
        lambda m, x: m.head(m.table(x.argsort(1)).mean(1)), table=table, head=head
    )


def shared() -> nn.Module:
    layer = linear()
    twice = nn.Sequential(layer, nn.Tanh(), layer)
    return Made(lambda m, x: m.layer(m.twice(x)), layer=layer, twice=twice)


def in_place(m: Any, x: Tensor) -> Tensor:
    y = m.layer(x).clone()
    y[:, 0] = 1.0
    y[1:3] *= 2
    z = y.clone()
    z[:, 2:4].mul_(3)
    z.view(-1)[3:7] = 0
    found: Tensor = m.layer(z)
    return found


def no_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = m.other(x)
    found: Tensor = m.layer(x) + y + m.layer.weight.detach().sum()
    return found


def complex_numbers(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    pairs = torch.view_as_complex(m.layer(x).view(-1, 3, 2)) * m.turn * m.scale
    found = torch.view_as_real(pairs).flatten(1)
    return found.masked_fill(m.mask, 0.0)


def averages(m: Any, x: Tensor) -> Tensor:
    y: Tensor = m.layer(x)
    m.steps = m.steps + 1
    m.mean = 0.9 * m.mean + 0.1 * y.detach().mean(0)
    return y / m.steps + m.mean


def low_rank() -> nn.Module:
    layer = linear().requires_grad_(False)
    up, down = (nn.Parameter(torch.rand(6, 2, dtype=F64)) for _ in range(2))
    return Made(
        lambda m, x: m.layer(x) + x @ m.up @ m.down.t(), layer=layer, up=up, down=down
    )


def odd_strides() -> nn.Module:
    layer = linear()
    layer.weight = nn.Parameter(torch.rand(6, 6, dtype=F64).t())
    empty = nn.Parameter(torch.zeros(0, 6, dtype=F64))
    size = nn.Parameter(torch.tensor(0.7, dtype=F64))
    return Made(
        lambda m, x: m.layer(torch.cat([x, m.empty])) * m.size.exp(),
        layer=layer,
        empty=empty,
        size=size,
    )


def cells(m: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), 6)
    for i in range(3):
        h = m.cell(x.roll(i, 1), h)
    return h


def experts(m: Any, x: Tensor) -> Tensor:
    weight, which = m.gate(x).softmax(-1).topk(2)
    made = torch.einsum("bd,kde->bke", x, m.kernels)
    picked = made.gather(1, which[..., None].expand(-1, -1, 6))
    return (picked * weight[..., None]).sum(1)


def hooked() -> nn.Module:
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    model[0].register_forward_hook(lambda module, given, made: made * 2)
    model[1].register_full_backward_hook(lambda module, to, of: (to[0] * 3,))
    return model


def narrow() -> nn.Module:
    return Made(
        lambda m, x: m.up(m.low(x.bfloat16()).double()),
        low=nn.Linear(6, 6, dtype=torch.bfloat16),
        up=linear(),
    )


def normed() -> nn.Module:
    norm = nn.BatchNorm1d(6, momentum=None, dtype=F64)
    return nn.Sequential(linear(), norm, nn.Dropout(0.0), linear())


def attention(m: Any, x: Tensor) -> Tensor:
    rows = x.view(-1, 3, 2).repeat(1, 1, 2)
    made: Tensor = m.heads(rows, rows, rows, need_weights=False)[0]
    return made[..., :2].flatten(1)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "tied weights": tied,
    "a shared module": shared,
    "unused parameters": lambda: Made(
        lambda m, x: m.layer(x), layer=linear(), other=linear()
    ),
    "parameters under no_grad": lambda: Made(no_grad, layer=linear(), other=linear()),
    "activations changed in place": lambda: Made(in_place, layer=linear()),
    "complex and whole numbers": lambda: Made(
        complex_numbers,
        layer=linear(),
        turn=torch.polar(torch.ones(3, dtype=F64), torch.arange(3.0, dtype=F64)),
        scale=nn.Parameter(torch.ones(3, dtype=torch.complex128)),
        steps=torch.tensor(0),
        mask=torch.tensor([True, False] * 3),
    ),
    "buffers set anew": lambda: Made(
        averages,
        layer=linear(),
        steps=torch.tensor(0.0, dtype=F64),
        mean=torch.zeros(6, dtype=F64),
    ),
    "a low-rank part": low_rank,
    "strides, no rows, no dims": odd_strides,
    "a recurrent cell": lambda: Made(cells, cell=nn.GRUCell(6, 6, dtype=F64)),
    "attention": lambda: Made(
        attention, heads=nn.MultiheadAttention(4, 2, batch_first=True, dtype=F64)
    ),
    "experts": lambda: Made(
        experts,
        gate=linear(4),
        kernels=nn.Parameter(torch.rand(4, 6, 6, dtype=F64)),
    ),
    "hooks": hooked,
    "a bfloat16 layer": narrow,
    "an average over all steps": normed,
}


class Pair(NamedTuple):
    """A batch."""

    x: Tensor
    y: Tensor


def squares(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch.x), batch.y)


def counted(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    keep = (batch["y"][:, 0] > 0).double()
    rows = (model(batch["x"]) - batch["y"]).square().mean(1) * keep
    return rows.sum() / keep.sum(), keep.sum()


def numbers() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 6, 6, generator=generator, dtype=F64)
    return x, y


def trained(wire: Wire, model: nn.Module, loss: Any, batch: Any, seed: int) -> Any:
    """Losses and states of three steps by a random division."""
    mine = copy.deepcopy(model)
    optimizer = SGD([p for p in mine.parameters() if p.requires_grad], 0.1, 0.5)
    mesh = Mesh(f"a={wire.num_ranks}")

    def divide(batch: Any) -> Divided:
        captured = capture(copy.deepcopy(model), batch, loss)
        graph = normalise(captured.graph, wire.num_ranks)
        return Divided(captured, graph, random_division(graph, mesh, seed))

    with TURN:
        training = start_planned("odd", mine, optimizer, wire, divide, batch)
    losses = []
    for step in range(1, 4):
        training.begin(step)
        losses.append(training.step(batch, 6).loss)
    training.settle()
    return losses, states_of(mine)


def states_of(model: nn.Module) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def alone(model: nn.Module, loss: Any, batch: Any) -> Any:
    """The same by torch."""
    mine = copy.deepcopy(model)
    optimizer = SGD([p for p in mine.parameters() if p.requires_grad], 0.1, 0.5)
    losses = []
    for _ in range(3):
        found = loss(mine, batch)
        found = found[0] if isinstance(found, tuple) else found
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.item())
    return losses, states_of(mine)


def check(model: nn.Module, loss: Any, batch: Any, seed: int, near: float) -> None:
    expected = alone(model, loss, batch)
    for found in run_threads(2, trained, model, loss, batch, seed):
        torch.testing.assert_close(found, expected, rtol=near, atol=near)


QUICK = {
    "a shared module",
    "an average over all steps",
    "buffers set anew",
    "complex and whole numbers",
    "strides, no rows, no dims",
    "tied weights",
}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(
            name,
            seed,
            marks=[] if name in QUICK and seed == 1 else [pytest.mark.prove],
        )
        for name in MODULES
        for seed in range(1, 6)
    ],
)
def test_odd_modules_train_as_on_one_device(name: str, seed: int) -> None:
    torch.manual_seed(0)
    near = 3e-2 if "bfloat16" in name else 1e-8
    check(MODULES[name](), squares, Pair(*numbers()), seed, near)


def test_a_masked_loss_of_a_dict() -> None:
    x, y = numbers()
    check(linear(), counted, {"x": x, "y": y, "unused": None}, 1, 1e-8)
