"""Steps in processes: the allocator gives no more than is predicted, nor much less."""

import platform

import pytest

from placet.placement.placement import S
from testing.allocated import SIZED, Trial, step_peak
from testing.divisions import Guide
from testing.ranks import run_ranks

pytestmark = [
    pytest.mark.procs,
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="other kernels than those measured"
    ),
]

DATA: Guide = {"batch": S(0)}


def check(trial: Trial, num_ranks: int) -> None:
    """On every rank: measured <= predicted <= 1.1 measured."""
    for found in run_ranks(num_ranks, step_peak, trial, carrier="native"):
        assert found is not None
        assert found.measured <= found.predicted <= 1.1 * found.measured, found


def test_data_parallel_with_adam() -> None:
    check(Trial("wide MLP", "a=2", guides=(DATA,)), 2)


@pytest.mark.prove
@pytest.mark.parametrize("optimizer", ["Adam", ""], ids=["trains", "evaluates"])
@pytest.mark.parametrize("name", sorted(SIZED))
def test_every_model_on_one_rank(name: str, optimizer: str) -> None:
    check(Trial(name, "a=1", guides=({},), optimizer=optimizer), 1)


@pytest.mark.prove
@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
@pytest.mark.parametrize("name", sorted(SIZED))
def test_every_model_data_parallel(name: str, optimizer: str) -> None:
    check(Trial(name, "a=2", guides=(DATA,), optimizer=optimizer), 2)


@pytest.mark.prove
@pytest.mark.parametrize("mesh", ["a=2", "a=3", "a=2, b=2"])
@pytest.mark.parametrize("name", ["MLP", "wide MLP"])
def test_random_divisions(name: str, mesh: str) -> None:
    check(Trial(name, mesh, seed=1), 4 if "," in mesh else int(mesh[-1]))
