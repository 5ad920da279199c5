"""A data-parallel run equals the one-device run on the same global batches.

20 steps in float64, within 1e-6. The quick suite takes a sample of the grid in which
each two settings meet at least once; the whole grid belongs to the long suites.
"""

import random
from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import StepLR

from testing.optimizers import Lamb
from tests.job.models import Everything, Matrices
from tests.job.trial import (
    Run,
    Trial,
    as_zero,
    assert_same_run,
    train_on,
    train_plainly,
)

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "adamw": lambda m: AdamW(m.parameters(), lr=1e-2),
    "sgd": lambda m: SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "muon": lambda m: Muon(m.parameters(), lr=0.05),
    "adafactor": lambda m: Adafactor(m.parameters(), lr=0.05),
    "lamb": lambda m: Lamb(m.parameters(), lr=0.01),
    "lbfgs": lambda m: LBFGS(m.parameters(), lr=0.1, max_iter=2, history_size=4),
}
GRID: dict[str, tuple[Any, ...]] = {
    "optimizer": tuple(OPTIMIZERS),
    "zero": (0, 1, 2, 3),
    "num_ranks": (2, 3, 4),
    "accumulate": (1, 2, 3),
    "clip_norm": (None, 0.5),
    "masked": (False, True),
}
SEED = 4


def trial(optimizer: str, *, dropout: float = 0.2, **options: Any) -> Trial:
    """A trial of the grid; Muon takes matrices only, LBFGS diverges on few rows."""
    kind = Matrices if optimizer == "muon" else Everything
    masked = options.pop("masked", False)
    return Trial(
        lambda: kind(dropout),
        OPTIMIZERS[optimizer],
        masked=masked,
        rows=50 if optimizer == "lbfgs" else 16,
        options=options,
        bytes_vary=optimizer == "lbfgs",
    )


@cache
def alone(optimizer: str, masked: bool, clip_norm: float | None) -> Run:
    """The run on one rank, which takes each global batch whole."""
    run = train_on(1, trial(optimizer, masked=masked, clip_norm=clip_norm))[0]
    assert 0.1 < max(run.losses[-3:]) < 5.0, "no fair trial: it converged, or diverges"
    return run


def check(case: dict[str, Any]) -> None:
    """One case of the grid."""
    case = dict(case)
    num_ranks, zero = case.pop("num_ranks"), case.pop("zero")
    one = alone(case["optimizer"], case["masked"], case["clip_norm"])
    runs = train_on(num_ranks, as_zero(trial(**case), zero))
    for run in runs:
        assert_same_run(run, one)
        assert run.losses == runs[0].losses, "ranks disagree"


def all_cases() -> list[dict[str, Any]]:
    """The whole grid, which grew by six ranks."""
    grid = GRID | {"num_ranks": (1, *GRID["num_ranks"], 6)}
    cases = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    return [c for c in cases if c["num_ranks"] * c["accumulate"] <= 16]


def pairs_of(case: dict[str, Any]) -> set[tuple[Any, Any]]:
    return set(combinations(case.items(), 2))


def pairwise_sample(seed: int) -> list[dict[str, Any]]:
    """Few cases in which each two settings meet."""
    choose = random.Random(seed)
    cases = [c for c in all_cases() if c["num_ranks"] in GRID["num_ranks"]]
    missing = set().union(*map(pairs_of, cases))
    sample = []
    while missing:
        best = max(choose.sample(cases, 60), key=lambda c: len(pairs_of(c) & missing))
        if pairs_of(best) & missing:
            sample.append(best)
            missing -= pairs_of(best)
    return sample


def name_of(case: dict[str, Any]) -> str:
    return "-".join(f"{k}={v}" for k, v in case.items())


@pytest.mark.parametrize("case", pairwise_sample(SEED), ids=name_of)
def test_same_as_one_device_sampled(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.prove
@pytest.mark.parametrize("case", all_cases(), ids=name_of)
def test_same_as_one_device_everywhere(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_same_as_one_device_with_one_rank_at_each_level(zero: int) -> None:
    options = {"masked": True, "clip_norm": 0.5}
    (run,) = train_on(1, as_zero(trial("adamw", accumulate=2, **options), zero))
    assert_same_run(run, alone("adamw", **options))


def test_same_as_one_device_with_more_ranks_than_last_rows() -> None:
    # 50 rows in batches of 16 leave 2: four of six ranks have none.
    for run in train_on(6, as_zero(trial("adamw", accumulate=2), 3)):
        assert_same_run(run, alone("adamw", False, None))


@pytest.mark.parametrize("optimizer", [o for o in OPTIMIZERS if o != "lbfgs"])
def test_one_rank_trains_as_plain_torch(optimizer: str) -> None:
    options = {
        "dropout": 0.0,
        "clip_norm": 0.5,
        "scheduler": lambda o: StepLR(o, 3, 0.7),
    }
    plain = train_plainly(trial(optimizer, **options))
    start = trial(optimizer).made_model().state_dict()
    assert max(float((p - start[n]).abs().max()) for n, p in plain.state.items()) > 0.05
    assert_same_run(train_on(1, trial(optimizer, **options))[0], plain)
