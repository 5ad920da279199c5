"""What a job refuses, on every rank, and what it says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW

from placet.errors import NonFiniteLoss, RanksDiffer
from placet.job.data import Data
from placet.job.job import Job
from placet.job.large import Deferred
from placet.wire.interface import Wire
from testing.ranks import run_threads
from tests.job.models import Everything, Matrices
from tests.job.trial import Trial, train_on, whole_state


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return AdamW(model.parameters(), lr=1e-2)


def message_of(kind: type[Exception], call: Callable[[], Any]) -> str:
    """What a call says as it fails; other ranks see it fail as well."""
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def made_job(wire: Wire, **options: Any) -> Job:
    """A small job, with what is given instead of what it has."""
    trial = Trial(Matrices, adamw)
    model = options.pop("model", None) or trial.made_model()
    optimizer = options.pop("optimizer", None) or adamw(model)
    data = options.pop("data", trial.made_data())
    return Job(
        model, trial.made_loss(), optimizer, data, steps=20, wire=wire, **options
    )


# --- a loss that is not finite -------------------------------------------------------


def spoiled(wire: Wire, zero: Any, bad_rank: int) -> tuple[str, bool, int]:
    """Rank `bad_rank` meets NaN in step 3 where it uses the head."""
    trial = Trial(Matrices, adamw)
    model = trial.made_model()
    job_now: list[Job] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, _ = batch
        logits = model(x)
        if job_now[0].step_count == 2 and wire.rank == bad_rank:
            logits = logits * torch.nan
        return logits.square().mean()

    before: dict[str, Tensor] = {}

    def remember(job: Job, event: Any) -> None:
        if job.step_count == 2:
            job.training.settle()
            before.update(
                {n: p.detach().clone() for n, p in job.training.parts.items()}
            )

    job = Job(
        model,
        loss,
        trial.optimizer(model),
        trial.made_data(),
        steps=5,
        zero=zero,
        callbacks=[remember],
        wire=wire,
    )
    job_now.append(job)
    text = message_of(NonFiniteLoss, job.fit)
    after = job.training.parts
    unchanged = all(torch.equal(before[n], after[n]) for n in after)
    assert job.status == "failed"
    return text, unchanged, job.step_count


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_nan_loss_names_step_and_parameter_on_all_ranks(zero: int) -> None:
    for text, unchanged, step in run_threads(3, spoiled, zero, 1):
        assert text.startswith("step 3: the loss is nan")
        assert "the gradient of 'embed.weight'" in text
        assert "docs/errors.md#nonfiniteloss" in text
        assert unchanged
        assert step == 2


def test_infinite_gradient_is_found_when_clipping() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        # Finite, and its gradient is not: the derivative of a root at zero.
        return (model(batch[0]) * 0).abs().sqrt().sum()

    trial = Trial(Matrices, adamw, loss=loss, options={"clip_norm": 1.0})
    for zero in (0, 2):
        with pytest.raises(
            NonFiniteLoss, match=r"step 1: the loss is 0; .* first seen in the gradient"
        ):
            train_on(2, replace(trial, zero=zero))


def test_lbfgs_refuses_a_loss_that_is_not_finite() -> None:
    trial = Trial(
        Matrices,
        lambda m: LBFGS(m.parameters(), lr=0.1, max_iter=2),
        loss=lambda m, b: m(b[0]).mean() * torch.inf,
        bytes_vary=True,
    )
    with pytest.raises(NonFiniteLoss, match=r"step 1"):
        train_on(2, trial)


# --- ranks that differ ---------------------------------------------------------------


def different(wire: Wire, what: str) -> str:
    """Rank 1 of 3 is started in another way."""
    odd, options = wire.rank == 1, dict[str, Any]()
    trial = Trial(Matrices, adamw)
    model = trial.made_model()
    if what == "parameters" and odd:
        with torch.no_grad():
            model.get_parameter("head.weight")[2, 3] += 1e-9
    elif what == "buffers":
        model.register_buffer("mask", torch.full((2,), float(odd)))
    elif what == "names" and odd:
        model = Trial(Everything, adamw).made_model()
    elif what == "settings":
        options["clip_norm"] = 2.0 if odd else 1.0
    elif what == "optimizer":
        options["optimizer"] = SGD(model.parameters(), 0.2 if odd else 0.1)
    elif what == "data" and odd:
        options["data"] = Data(trial.made_data().dataset, 24)
    elif what == "seeds":
        generator = torch.Generator().manual_seed(wire.rank)
        nn.init.normal_(model.get_parameter("embed.weight"), generator=generator)
    return message_of(RanksDiffer, lambda: made_job(wire, model=model, **options))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("parameters", "in values: first at parameter 'head.weight (5, 9)"),
        ("buffers", "in values: first at parameter 'mask (2,)"),
        ("names", "in names: rank 0 has"),
        ("settings", "in settings: rank 0 has {"),
        ("optimizer", "in optimizer: rank 0 has"),
        ("data", "'batch_rows': 16"),
    ],
)
def test_ranks_that_differ_are_told_on_every_rank(what: str, said: str) -> None:
    texts = run_threads(3, different, what)
    for text in texts:
        assert text.startswith("ranks [1] differ from rank 0 in ")
        assert said in text
        assert "docs/errors.md#ranksdiffer" in text


def test_ranks_with_different_seeds_are_told_the_usual_reason() -> None:
    for text in run_threads(3, different, "seeds"):
        assert "ranks [1, 2] differ from rank 0 in values" in text
        assert "torch.manual_seed" in text


# --- arguments -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"zero": 4}, r"zero=4: the ZeRO level is 0, 1, 2 or 3"),
        ({"precision": "fp8"}, r"precision='fp8': choose"),
        ({"clip_norm": 0.0}, r"clip_norm=0\.0: needs a number above 0"),
        ({"clip_norm": float("nan")}, r"clip_norm=nan"),
        ({"accumulate": 0}, r"accumulate=0: needs at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_threads(1, lambda wire: made_job(wire, **options))


def test_an_optimizer_over_strangers_is_refused() -> None:
    stranger = nn.Linear(2, 2)
    mixed = [*Matrices().parameters(), *stranger.parameters()]
    with pytest.raises(ValueError, match=r"6 of the optimizer's 6 parameters are not"):
        run_threads(1, lambda w: made_job(w, optimizer=SGD(mixed, 0.1)))
    with pytest.raises(TypeError, match=r"optimizer gave a int, no Optimizer"):
        run_threads(1, lambda w: made_job(w, optimizer=lambda params: 3))
    with pytest.raises(ValueError, match=r"Job needs an optimizer"):
        Job(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"scheduler gave a int"):
        run_threads(1, lambda w: made_job(w, scheduler=lambda optimizer: 3))


def test_a_deferred_model_needs_a_function_for_its_optimizer() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"give the optimizer as a function"):
        Job(Deferred(lambda: nn.Linear(2, 2)), None, SGD(model.parameters(), 0.1))


def test_more_ranks_than_rows_are_refused() -> None:
    data = Data(Trial(Matrices, adamw).made_data().dataset, 3)

    def fit(wire: Wire) -> str:
        return message_of(ValueError, made_job(wire, data=data).fit)

    for text in run_threads(4, fit):
        assert "a global batch of 3 rows" in text
        assert "use at most -n 3" in text


def test_fit_says_what_is_missing() -> None:
    model = nn.Linear(2, 2)
    job = Job(model, optimizer=SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"Job\.fit needs loss, data, steps"):
        job.fit()
    with pytest.raises(ValueError, match=r"needs validation=Data"):
        job.evaluate()


def constant_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
    """A stranger's way to treat a part without targets: the number 0."""
    x, y = batch
    kept = y != -100
    if not kept.any():
        return torch.zeros(()), 0
    return nn.functional.cross_entropy(model(x)[kept], y[kept]), int(kept.sum())


def test_a_constant_loss_of_a_part_without_targets() -> None:
    trial = Trial(Matrices, adamw, masked=True)
    constant = replace(trial, loss=constant_loss)
    alone = train_on(1, trial)[0]
    for zero in (0, 2):
        for run in train_on(4, replace(constant, zero=zero)):
            assert run.losses == pytest.approx(alone.losses)
    with pytest.raises(ValueError, match=r"\(0 targets\) depends on no parameter"):
        train_on(4, replace(constant, zero=3))
    with pytest.raises(ValueError, match=r"\(16 targets\) depends on no parameter"):
        train_on(1, replace(trial, loss=lambda m, b: torch.ones(()), masked=False))


def test_a_failing_loss_leaves_a_failed_job() -> None:
    def fit(wire: Wire) -> str:
        job = made_job(wire)
        job.loss = lambda model, batch: 1 / 0
        with pytest.raises(ZeroDivisionError):
            job.fit()
        assert whole_state(job)
        return job.status

    assert run_threads(2, fit) == ["failed", "failed"]
