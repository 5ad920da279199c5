"""What a loss may give, and what callbacks see of the model."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.events import StepDone
from placet.job.job import Job
from placet.wire.interface import Wire
from testing.ranks import run_threads


def make(loss: Any = None, model: nn.Module | None = None, **options: Any) -> Job:
    """A job on eight rows."""
    made = nn.Linear(5, 3).double() if model is None else model
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.is_floating_point():
                parameter.fill_(0.1)
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).view(8, 5)
    data = Data(TensorDataset(x, torch.arange(8) % 3), 4)
    optimizer = SGD(made.parameters(), lr=0.1)
    return Job(made, loss or mean, optimizer, data, steps=3, **options)


def mean(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross-entropy."""
    return F.cross_entropy(model(batch[0]), batch[1])


NO_LOSS: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": (lambda x: None, TypeError, "gave a NoneType for its mean"),
    "a number": (lambda x: x.item(), TypeError, "without .item()"),
    "a dict": (lambda x: {"loss": x}, TypeError, "gave a dict for its mean"),
    "a list": (lambda x: [x, 4], TypeError, r"a pair \(mean, number of targets\)"),
    "three": (lambda x: (x, 4, 5), TypeError, "gave a tuple of 3"),
    "rows": (lambda x: x.expand(4), ValueError, r"shape \(4,\).*\.mean\(\)"),
    "a text": (lambda x: (x, "4"), TypeError, "gave a str for its count"),
    "counts": (lambda x: (x, torch.ones(4)), ValueError, r"count of shape \(4,\)"),
    "less than none": (lambda x: (x, -1), ValueError, "counted -1 targets"),
    "no number": (lambda x: (x, float("nan")), ValueError, "counted nan targets"),
}


@pytest.mark.parametrize("case", NO_LOSS)
def test_what_is_no_loss_is_refused_in_words(case: str) -> None:
    give, error, message = NO_LOSS[case]
    job = make(lambda model, batch: give(mean(model, batch)))
    with pytest.raises(error, match=message):
        job.fit()


def test_metric_of_several_numbers_is_refused_by_its_name() -> None:
    data = Data(TensorDataset(torch.ones(2, 5).double(), torch.zeros(2).long()), 2)
    job = make(validation=data, metrics=lambda model, batch: {"hits": torch.ones(2)})
    with pytest.raises(ValueError, match=r"'hits' gave a mean of shape \(2,\)"):
        job.evaluate()


@pytest.mark.parametrize("zero", [1, 2])
def test_callbacks_see_parameters_of_this_step(zero: Any) -> None:
    def seen(wire: Wire, level: Any) -> list[Tensor]:
        job = make(wire=wire, zero=level)
        found: list[Tensor] = []

        def look(job: Job, event: object) -> None:
            if isinstance(event, StepDone):
                found.append(job.model.weight.detach().clone())  # type: ignore

        job.callbacks.append(look)
        job.fit()
        return found

    (expected,) = run_threads(1, seen, 0)
    for found in run_threads(2, seen, zero):
        torch.testing.assert_close(found, expected)


class WithIntegers(nn.Module):
    """Parameters of whole numbers and of no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.codes = nn.Parameter(torch.arange(4), requires_grad=False)
        self.flags = nn.Parameter(torch.ones(3).bool(), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(3, 0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.codes.sum() + self.empty.sum()
        return out


@pytest.mark.parametrize("zero", [1, 3])
def test_parameters_of_whole_numbers_are_split_too(zero: Any) -> None:
    def trained(wire: Wire, level: Any) -> float:
        job = make(model=WithIntegers().double(), wire=wire, zero=level)
        losses: list[float] = []

        def look(job: Job, event: object) -> None:
            if isinstance(event, StepDone):
                losses.append(event.loss)

        job.callbacks.append(look)
        job.fit()
        return losses[-1]

    (expected,) = run_threads(1, trained, 0)
    assert run_threads(2, trained, zero) == pytest.approx([expected] * 2)


def test_model_whose_parameters_are_all_frozen_can_be_evaluated() -> None:
    model = nn.Linear(5, 3).double().requires_grad_(False)
    data = Data(TensorDataset(torch.ones(2, 5).double(), torch.zeros(2).long()), 2)
    job = make(model=model, validation=data)
    assert job.evaluate()["loss"] == pytest.approx(float(torch.tensor(3.0).log()))
    with pytest.raises(ValueError, match="depends on no parameter that trains"):
        job.fit()


@pytest.mark.parametrize("zero", [0, 1])
def test_copies_of_the_model_are_plain_and_one_rank_may_use_them(zero: Any) -> None:
    def used(wire: Wire) -> float:
        job = make(wire=wire, zero=zero)
        copied: Any = copy.deepcopy(job.model)
        thawed = pickle.loads(pickle.dumps(job.model))
        job.fit()
        x = torch.ones(2, 5).double()
        if wire.rank == 0:
            torch.testing.assert_close(copied(x), thawed(x))
        now = job.model.get_parameter("weight")
        return float((copied.weight - now).abs().max().detach())

    assert all(change > 1e-3 for change in run_threads(2, used))


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "plateau": ({"scheduler": ReduceLROnPlateau}, "steps by a metric"),
    "halves": ({"accumulate": 2.5}, r"accumulate=2\.5: .*a whole number"),
    "text": ({"clip_norm": "1"}, "clip_norm='1': needs a number"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_the_wrong_kind_are_refused_in_words(case: str) -> None:
    options, message = SETTINGS[case]
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_what_is_no_model_or_no_size_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match="the model is of type int; Job needs"):
        Job(3, mean, SGD([torch.ones(1)], lr=0.1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"batch_size=2\.5.*whole numbers"):
        Data(TensorDataset(torch.ones(3)), 2.5)  # type: ignore[arg-type]
