"""Batch normalisation over ranks equals torch's on one device, in float64 to 1e-10."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placet.boxing.moves import AllReduce
from placet.run.batch_norm import ReduceSum, Reduction, global_batch_norm
from placet.run.global_batch import GlobalBatchMode, Rows
from placet.wire.interface import Wire
from testing.ranks import run_threads

SPLITS = [(6,), (3, 3), (4, 2), (3, 2, 1), (2, 2, 1, 1)]


def reduce_over(wire: Wire, log: list[str] | None = None) -> ReduceSum:
    """Sums over a wire's ranks, as a job does."""
    group = tuple(range(wire.num_ranks))

    def reduce_sum(term: Tensor, name: str) -> Tensor:
        if log is not None:
            log.append(name)
        move = AllReduce(group, term.numel(), term.dtype)
        return wire.submit(move, term, key=name).wait()

    return reduce_sum


def rows_of(split: Sequence[int], rank: int, num_rows: int) -> Rows:
    """Ranks past the split have no rows: a dummy of weight 0."""
    if rank >= len(split):
        return Rows(num_rows, 1, num_rows, weight=0.0)
    first = sum(split[:rank])
    return Rows(first, split[rank], num_rows)


@dataclass(frozen=True)
class Outcome:
    """What one rank ends with."""

    output: Tensor
    grad_input: Tensor
    grads: dict[str, Tensor]
    buffers: dict[str, Tensor]


def train(
    model: nn.Module, x: Tensor, target: Tensor, mode: Any, share: float = 1.0
) -> Outcome:
    """Three steps of plain gradients; the loss is a sum over rows."""
    for _ in range(3):
        leaf = x.clone().requires_grad_()
        model.zero_grad()
        with mode():
            output = model(leaf)
            (share * (output - target).pow(3).sum()).backward()
    assert leaf.grad is not None
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    return Outcome(output.detach(), leaf.grad, grads, buffers)


def compare(
    make: Callable[[], nn.Module],
    x: Tensor,
    split: Sequence[int],
    *,
    num_dummies: int = 0,
    tolerance: float = 1e-10,
) -> None:
    """Train on all rows, and on parts on ranks; everything must agree."""
    torch.manual_seed(0)
    target = torch.randn_like(make()(x))
    whole = train(make(), x, target, nullcontext)

    def run(wire: Wire) -> Outcome:
        rows = rows_of(split, wire.rank, len(x))
        if rows.is_dummy:
            local, wanted = 100 * torch.ones_like(x[:1]), target[:1]
        else:
            span = slice(rows.first_row, rows.first_row + rows.num_rows)
            local, wanted = x[span], target[span]

        def mode() -> GlobalBatchMode:
            return GlobalBatchMode(rows, reduce_sum=reduce_over(wire))

        return train(models[wire.rank], local, wanted, mode, rows.weight)

    num_ranks = len(split) + num_dummies
    models = [make() for _ in range(num_ranks)]
    ranks = run_threads(num_ranks, run)
    close = {"rtol": tolerance, "atol": tolerance}
    real = ranks[: len(split)]
    joined = torch.cat([r.output for r in real])
    torch.testing.assert_close(joined, whole.output, **close)
    joined = torch.cat([r.grad_input for r in real])
    torch.testing.assert_close(joined, whole.grad_input, **close)
    for name, grad in whole.grads.items():
        total = sum(r.grads[name] for r in ranks)
        torch.testing.assert_close(total, grad, **close)
    for dummy in ranks[len(split) :]:
        assert dummy.grad_input.count_nonzero() == 0
    for rank in ranks:
        for name, buffer in whole.buffers.items():
            torch.testing.assert_close(rank.buffers[name], buffer, **close)
            assert torch.equal(rank.buffers[name], ranks[0].buffers[name])


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(7)
        module = make().double()
        for p in module.parameters():
            nn.init.normal_(p, 1.0, 0.5)
        return module

    return made


def data(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(shape, dtype=torch.float64, generator=generator) * 3 + 2


@pytest.mark.parametrize("split", SPLITS)
def test_batch_norm_over_ranks(split: tuple[int, ...]):
    compare(seeded(lambda: nn.BatchNorm2d(5)), data(6, 5, 3, 4), split)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.BatchNorm1d(5), (6, 5)),
        (lambda: nn.BatchNorm1d(5), (6, 5, 7)),
        (lambda: nn.BatchNorm3d(2), (6, 2, 2, 3, 2)),
        (lambda: nn.BatchNorm2d(5, affine=False), (6, 5, 3, 4)),
        (lambda: nn.BatchNorm2d(5, track_running_stats=False), (6, 5, 3, 4)),
        (lambda: nn.BatchNorm2d(5, momentum=None), (6, 5, 3, 4)),
        (lambda: nn.BatchNorm2d(5, momentum=0.7, eps=0.3), (6, 5, 3, 4)),
    ],
)
def test_batch_norm_forms(make: Callable[[], nn.Module], shape: tuple[int, ...]):
    compare(seeded(make), data(*shape), (3, 2, 1))


@pytest.mark.parametrize("split", [(6,), (4, 2)])
def test_batch_norm_leaves_dummies_out(split: tuple[int, ...]):
    compare(seeded(lambda: nn.BatchNorm2d(5)), data(6, 5, 3, 4), split, num_dummies=2)


class Small(nn.Module):
    """Two normalised layers, so that cotangents cross ranks twice."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, 6),
            nn.BatchNorm1d(6),
            nn.Tanh(),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


@pytest.mark.parametrize("split", SPLITS)
def test_batch_norm_within_a_network(split: tuple[int, ...]):
    compare(seeded(Small), data(6, 3, 4, 4), split, num_dummies=1)


def test_batch_norm_under_instance_norm():
    def make() -> nn.Module:
        return nn.Sequential(
            nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
            nn.BatchNorm2d(5),
        )

    compare(seeded(make), data(6, 5, 3, 4), (3, 2, 1), num_dummies=1)


def test_batch_norm_far_from_zero_keeps_its_digits():
    compare(seeded(lambda: nn.BatchNorm1d(5)), data(6, 5) + 1e4, (4, 2), tolerance=1e-6)
    x = (data(64, 5) + 1e4).float()
    reference = F.batch_norm(x.double(), None, None, None, None, True)

    def run(wire: Wire) -> Tensor:
        rows = rows_of((40, 24), wire.rank, 64)
        with GlobalBatchMode(rows, reduce_sum=reduce_over(wire)):
            local = x[rows.first_row : rows.first_row + rows.num_rows]
            return F.batch_norm(local, None, None, None, None, True)

    got = torch.cat(run_threads(2, run)).double()
    # Two roundings of numbers of size 1e4; torch's own error depends on its threads.
    rounding = 1e4 * torch.finfo(torch.float32).eps / x.double().std()
    assert (got - reference).abs().max() <= 2 * rounding


def alone(term: Tensor, name: str) -> Tensor:
    return term


def test_batch_norm_passes_gradcheck():
    x, w, b = data(4, 3, 2), data(3), data(3)
    for tensor in (x, w, b):
        tensor.requires_grad_()

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return global_batch_norm(
            x, None, None, w, b, momentum=0.1, eps=1e-5, reduction=Reduction(alone, "n")
        )

    assert torch.autograd.gradcheck(norm, (x, w, b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_takes_low_precision_rows(dtype: torch.dtype):
    layers = [nn.BatchNorm2d(5) for _ in range(2)]
    x = data(6, 5, 3, 4).to(dtype)
    exact = nn.BatchNorm2d(5).double()
    wanted = exact(x.double())

    def run(wire: Wire) -> tuple[Tensor, Tensor]:
        rows = rows_of((4, 2), wire.rank, 6)
        local = x[rows.first_row : rows.first_row + rows.num_rows].requires_grad_()
        with (
            GlobalBatchMode(rows, reduce_sum=reduce_over(wire)),
            torch.autocast("cpu", torch.bfloat16),
        ):
            output = layers[wire.rank](local)
        output.float().pow(2).sum().backward()
        assert output.dtype == local.grad.dtype == dtype
        assert layers[wire.rank].weight.grad.dtype == torch.float32
        return output.detach(), layers[wire.rank].running_var

    (first, var), (second, _) = run_threads(2, run)
    got = torch.cat([first, second]).double()
    torch.testing.assert_close(got, wanted.detach(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(var.double(), exact.running_var, rtol=1e-5, atol=1e-5)


def test_batch_norm_keeps_channels_last():
    x = data(6, 5, 3, 4).to(memory_format=torch.channels_last)
    mode = GlobalBatchMode(Rows(0, 6, 6), reduce_sum=alone)
    with mode:
        y = F.batch_norm(x, None, None, None, None, training=True)
    assert y.is_contiguous(memory_format=torch.channels_last)
    wanted = F.batch_norm(x, None, None, None, None, training=True)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-12)
    compare(seeded(lambda: nn.BatchNorm2d(5)), x, (4, 2))


def test_batch_norm_boxes_once_a_layer_and_direction():
    log: list[str] = []

    def run(wire: Wire) -> None:
        rows = rows_of((4, 2), wire.rank, 6)
        local = data(6, 3, 4, 4)[rows.first_row : rows.first_row + rows.num_rows]
        names = log if wire.rank == 0 else None
        with GlobalBatchMode(rows, reduce_sum=reduce_over(wire, names)):
            models[wire.rank](local).sum().backward()

    models = [seeded(Small)() for _ in range(2)]
    run_threads(2, run)
    assert log == [f"batch_norm.{i}.forward" for i in (0, 1)] + [
        f"batch_norm.{i}.backward" for i in (1, 0)
    ]


def test_batch_norm_under_checkpointing():
    x = data(6, 5, 3, 4)
    grads: dict[bool, list[Tensor]] = {}

    def run(wire: Wire) -> Tensor:
        rows = rows_of((4, 2), wire.rank, 6)
        leaf = x[rows.first_row : rows.first_row + rows.num_rows].clone()
        leaf.requires_grad_()
        norm = layers[wire.rank]
        with GlobalBatchMode(rows, reduce_sum=reduce_over(wire)):
            if again:
                y = checkpoint(
                    norm, leaf, use_reentrant=False, preserve_rng_state=False
                )
            else:
                y = norm(leaf)
            y.pow(3).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    for again in (False, True):
        layers = [seeded(lambda: nn.BatchNorm2d(5))() for _ in range(2)]
        grads[again] = run_threads(2, run)
    for plain, recomputed in zip(grads[False], grads[True], strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=1e-12, atol=1e-12)


def test_batch_norm_stays_local_where_asked_or_in_evaluation():
    def refuse(term: Tensor, name: str) -> Tensor:
        raise AssertionError(name)

    x, norm = data(6, 5), nn.BatchNorm1d(5).double()
    wanted = nn.BatchNorm1d(5).double()(x)
    with GlobalBatchMode(Rows(0, 6, 12), reduce_sum=None):
        assert torch.equal(norm(x), wanted)
    norm.eval()
    with GlobalBatchMode(Rows(0, 6, 12), reduce_sum=refuse):
        norm(x)
        nn.InstanceNorm1d(5)(x[:, :, None].expand(6, 5, 3))


def test_batch_norm_of_one_value_is_refused_on_every_rank():
    def run(wire: Wire) -> str:
        rows = rows_of((1,), wire.rank, 1)
        mode = GlobalBatchMode(rows, reduce_sum=reduce_over(wire))
        with (
            pytest.raises(ValueError, match="more than 1 value per channel") as e,
            mode,
        ):
            nn.BatchNorm1d(5)(torch.ones(1, 5))
        return str(e.value)

    assert all("got 1" in message for message in run_threads(2, run))
    with pytest.raises(ValueError, match="eps > 0"):
        global_batch_norm(
            data(4, 3),
            None,
            None,
            None,
            None,
            momentum=0.1,
            eps=0.0,
            reduction=Reduction(alone, "n"),
        )


def test_batch_norm_of_constant_rows():
    x = torch.full((6, 2), 3.25)
    with GlobalBatchMode(Rows(0, 6, 6), reduce_sum=alone):
        y = F.batch_norm(x, None, None, None, None, training=True)
    # torch's kernel leaves as much, for it takes x invstd - mean invstd.
    assert float(y.abs().max()) < 2e-4
