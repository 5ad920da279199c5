"""What a model may have: frozen, thawed, unused and tied parameters, groups, norms."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.checkpoint import checkpoint

from placet.job.data import Data
from placet.job.job import Job
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.models import ConvNet, Everything, Matrices
from tests.job.trial import Trial, as_zero, assert_same_run, train_on, train_plainly


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-2)


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def in_groups(model: nn.Module) -> Optimizer:
    """Decays matrices only, as char_gpt does; parameters stand in another order."""
    trained = [p for p in model.parameters() if p.requires_grad]
    others = [p for p in trained if p.dim() < 2]
    matrices = [p for p in trained if p.dim() >= 2]
    groups = [
        {"params": others, "weight_decay": 0.0, "lr": 0.02},
        {"params": matrices, "weight_decay": 0.1},
    ]
    return AdamW(groups, lr=5e-3)


def freeze_and_thaw(model: nn.Module, step: int) -> None:
    """Freeze a block and more after step 5, thaw them after step 12."""
    if step in (5, 12):
        for name, parameter in model.named_parameters():
            if name.startswith(("blocks.1", "scale", "tail.weight")):
                parameter.requires_grad_(step == 12)


class Skips(Matrices):
    """Blocks that only some rows want: a rank may leave out a block for some steps."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for i, block in enumerate(self.blocks):
            chosen = x[:, i] > 0.9
            if chosen.any():
                x = x.index_put((chosen,), block(x[chosen]).tanh(), accumulate=True)
        out: Tensor = self.head(x)
        return out


class Uncalled(Matrices):
    """Uses the weights of its blocks without calling the blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + F.linear(x, block.get_parameter("weight")).tanh()
        out: Tensor = self.head(x)
        return out


class Segment(Matrices):
    """All blocks in one segment of activation checkpointing."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        if self.training:
            x = checkpoint(self.segment, x, use_reentrant=False)
        else:
            x = self.segment(x)
        out: Tensor = self.head(x)
        return out

    def segment(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x).tanh()
        return x


class Sometimes(Matrices):
    """A parameter that only rows of one sign use."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(9))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h).tanh()
        if (x[:, 0] > 1.5).any():
            h = h + (x[:, :1] > 1.5) * self.gain
        out: Tensor = self.head(h)
        return out


TRIALS: dict[str, tuple[Trial, tuple[tuple[int, int], ...]]] = {
    "groups and scheduler": (
        Trial(
            Everything,
            in_groups,
            options={"scheduler": lambda o: StepLR(o, 3, 0.7), "clip_norm": 1.0},
        ),
        ((2, 1), (3, 3)),
    ),
    "frozen and thawed": (
        Trial(Everything, adamw, at_step=freeze_and_thaw, options={"accumulate": 2}),
        ((2, 0), (3, 1), (2, 3)),
    ),
    "frozen and thawed, clipped": (
        Trial(Everything, sgd, at_step=freeze_and_thaw, options={"clip_norm": 0.3}),
        ((2, 2), (3, 3)),
    ),
    "activation checkpointing": (
        Trial(lambda: Everything(0.0, recompute=True), adamw, masked=True),
        ((2, 0), (3, 2), (2, 3)),
    ),
    "activation checkpointing of several blocks": (
        Trial(Segment, adamw, options={"accumulate": 2}),
        ((2, 0), (3, 3)),
    ),
    "batch norm": (Trial(ConvNet, adamw), ((2, 0), (3, 1), (4, 3))),
    "batch norm, clipped, by momentum": (
        Trial(ConvNet, sgd, options={"clip_norm": 0.3}),
        ((2, 2), (3, 0)),
    ),
    "batch norm of rows without targets": (
        Trial(ConvNet, adamw, masked=True),
        ((2, 0), (4, 2), (3, 3)),
    ),
    "batch norm under activation checkpointing": (
        Trial(lambda: ConvNet(recompute=True), adamw, bytes_vary=True),
        ((2, 0), (3, 3)),
    ),
    "a block left out on some ranks": (
        Trial(Skips, sgd, masked=True),
        ((2, 0), (2, 1), (4, 2)),
    ),
    "blocks used without being called": (
        # At level 3 they are gathered at each read, which no plan can know.
        Trial(Uncalled, sgd, bytes_vary=True),
        ((2, 0), (2, 1), (3, 2), (2, 3)),
    ),
    "a parameter used on some ranks": (
        Trial(Sometimes, sgd),
        ((2, 0), (3, 1), (4, 2), (3, 3)),
    ),
}


@pytest.mark.parametrize("title", TRIALS)
def test_job_trains_as_on_one_device(title: str) -> None:
    trial, places = TRIALS[title]
    alone = train_on(1, trial)[0]
    for num_ranks, zero in places:
        for run in train_on(num_ranks, as_zero(trial, zero)):
            assert_same_run(run, alone)


@pytest.mark.parametrize(
    "trial",
    [
        Trial(lambda: Everything(0.0), sgd, at_step=freeze_and_thaw),
        Trial(lambda: Everything(0.0), in_groups),
        Trial(Sometimes, sgd),
    ],
)
def test_one_rank_treats_parameters_as_plain_torch(trial: Trial) -> None:
    assert_same_run(train_on(1, trial)[0], train_plainly(trial))


def test_unused_parameters_are_skipped_as_on_one_device() -> None:
    trial = Trial(lambda: Everything(0.0), sgd)
    start = trial.made_model().state_dict()
    for zero in range(4):
        for run in train_on(2, as_zero(trial, zero)):
            # Momentum and weight decay would change it, had it got zeros.
            assert torch.equal(run.state["unused.weight"], start["unused.weight"])
            assert torch.equal(run.state["frozen"], start["frozen"])
            assert not torch.equal(run.state["one"], start["one"])


def statistics(wire: Wire, local: bool) -> dict[str, Tensor]:
    """Running statistics after one step."""
    trial = Trial(ConvNet, sgd)
    model = trial.made_model()
    job = Job(
        model,
        trial.made_loss(),
        trial.optimizer(model),
        Data(trial.made_data().dataset, 16, shuffle=False),
        local_batch_norm=local,
        wire=wire,
    )
    job.fit(1)
    assert bool([b for b in job.program.boxings() if b.queue == "batch_norm"]) != local
    return {n: b.clone() for n, b in model.named_buffers() if n.endswith("mean")}


def test_local_batch_norm_takes_each_ranks_rows() -> None:
    trial = Trial(ConvNet, sgd)
    rows = trial.made_data().dataset.tensors[0]
    for rank, found in enumerate(run_threads(2, statistics, True)):
        model = trial.made_model()
        model(rows[8 * rank : 8 * rank + 8])
        for name, buffer in model.named_buffers():
            if name.endswith("mean"):
                torch.testing.assert_close(found[name], buffer)
    first, second = run_threads(2, statistics, False)
    assert all(torch.equal(first[n], second[n]) for n in first)
    model = trial.made_model()
    model(rows[:16])
    for name, mean in first.items():
        torch.testing.assert_close(mean, dict(model.named_buffers())[name])
