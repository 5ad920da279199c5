"""A job with a plan trains as one rank without a plan does."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Muon, Optimizer
from torch.optim.lr_scheduler import StepLR

from placet.errors import NonFiniteLoss, PlanError
from placet.job.checkpoint import Checkpoints
from placet.job.events import Evaluated, Event, StepDone
from placet.job.job import Job
from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.planner.pins import Pin
from placet.planner.plan import Plan
from placet.wire.interface import Wire
from testing.ranks import run_ranks, run_threads
from tests.job.planned_trials import SPLIT, ConvNet, Mlp, adam, make_job, planned, sgd
from tests.job.trial import Trial, assert_same_run, train, train_on


def halving(optimizer: Optimizer) -> StepLR:
    return StepLR(optimizer, 2, 0.5)


def trial_of(model: Callable[[], nn.Module], make: Any, **others: Any) -> Trial:
    """A trial whose sixth step is past an epoch's short last batch."""
    options = {"clip_norm": 0.5, "scheduler": halving}
    return Trial(model, make, steps=6, options=options, **others)


@pytest.mark.parametrize(
    ("model", "make", "mesh"),
    [
        (Mlp, sgd, "a=2, b=2"),
        (ConvNet, adam, "a=2"),
        pytest.param(Mlp, adam, "a=2", marks=pytest.mark.prove),
        pytest.param(ConvNet, sgd, "a=2, b=2", marks=pytest.mark.prove),
    ],
)
def test_as_one_rank(model: Any, make: Any, mesh: str) -> None:
    trial = trial_of(model, make)
    (alone,) = train_on(1, trial)
    for one in train_on(Mesh(mesh).num_ranks, planned(trial, mesh, SPLIT)):
        assert_same_run(one, alone, tolerance=1e-9)


def test_masked_targets() -> None:
    trial = trial_of(Mlp, adam, masked=True)
    (alone,) = train_on(1, trial)
    for one in train_on(2, planned(trial, "a=2")):
        assert_same_run(one, alone, tolerance=1e-9)


@pytest.mark.prove
@pytest.mark.procs
def test_as_one_rank_in_processes() -> None:
    trial = Trial(Mlp, adam, steps=5)
    (alone,) = train_on(1, trial)
    for one in run_ranks(2, train, planned(trial, "a=2", SPLIT)):
        assert one is not None
        assert_same_run(one, alone, tolerance=1e-9)


def moved(wire: Wire, trial: Trial) -> tuple[Any, Any]:
    """A step's bytes, as counted and as the program says."""
    job = make_job(wire, trial)
    seen: list[tuple[int, int]] = []

    def watch(_: Job, event: Event) -> None:
        if isinstance(event, StepDone):
            seen.append((event.sent_bytes, event.received_bytes))

    watch.reads_parameters = False  # type: ignore[attr-defined]
    job.callbacks.append(watch)
    job.fit(2)
    assert not job.training.ledger.mismatched
    program = job.program
    return seen, (program.sent_bytes(job.rank), program.received_bytes(job.rank))


def test_the_ledger_is_the_program() -> None:
    trial = planned(trial_of(Mlp, adam), "a=2, b=2", SPLIT)
    for seen, said in run_threads(4, moved, trial):
        assert seen == [said] * 2


def refused(wire: Wire, trial: Trial, others: dict[str, Any]) -> str:
    """The message with which a job is refused."""
    with pytest.raises((ValueError, PlanError)) as caught:
        make_job(wire, trial, **others)
    return str(caught.value)


def muon(model: nn.Module) -> Optimizer:
    return Muon([p for p in model.parameters() if p.dim() == 2])


def lbfgs(model: nn.Module) -> Optimizer:
    return LBFGS(model.parameters())


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"zero": 1}, "zero=1 does not go with plan="),
        ({"accumulate": 2}, "accumulate=2 does not go"),
        ({"precision": "fp16"}, "use 'bf16'"),
        ({"optimizer": muon}, "needs whole tensors"),
        ({"optimizer": lbfgs}, "evaluates the loss itself"),
        ({"loss": lambda m, b: m(b[0]).square().mean()}, "operators: "),
        ({"plan": "none.json"}, "No such file"),
        ({"plan": 5}, "plan=5: give a plan (placet.plan makes one)"),
    ],
)
def test_what_does_not_go_with_a_plan(others: dict[str, Any], message: str) -> None:
    trial = planned(trial_of(Mlp, sgd), "a=2", SPLIT)
    for text in run_threads(2, refused, trial, others):
        assert message in text


def test_a_plan_for_others_is_refused() -> None:
    trial = planned(trial_of(Mlp, sgd), "a=2", SPLIT)
    assert "start it with -n 2" in run_threads(1, refused, trial, {})[0]
    small = replace(trial, rows=8)
    assert "batch: " in run_threads(2, refused, small, {})[0]


def spoiled(wire: Wire, trial: Trial) -> str:
    """What a job says whose loss is not a number in the second step."""
    job = make_job(wire, trial)

    def spoil(job: Job, event: Event) -> None:
        if isinstance(event, StepDone):
            with torch.no_grad():
                job.training.parts["down.bias"].fill_(float("nan"))

    job.callbacks.append(spoil)
    with pytest.raises(NonFiniteLoss) as caught:
        job.fit(3)
    return str(caught.value)


def test_a_loss_that_is_no_number() -> None:
    trial = planned(Trial(Mlp, sgd), "a=2")
    for text in run_threads(2, spoiled, trial):
        assert text.startswith("step 2: the loss is nan")


def resumed(wire: Wire, trial: Trial, folder: str, load: bool, steps: int) -> Any:
    """A job that goes on from a checkpoint, or writes one."""
    job = make_job(wire, trial, checkpoints=Checkpoints(folder))
    if load:
        job.load(folder)
    job.fit(steps)
    state = {n: p.detach().clone() for n, p in job.model.named_parameters()}
    return state, {n: b.clone() for n, b in job.model.named_buffers()}


@pytest.mark.procs
@pytest.mark.parametrize(
    "first_planned", [True, pytest.param(False, marks=pytest.mark.prove)]
)
def test_checkpoints_go_both_ways(first_planned: bool, tmp_path: Path) -> None:
    plain = trial_of(Mlp, adam)
    two = planned(plain, "a=2", SPLIT)
    first, then = (two, plain) if first_planned else (plain, two)
    run = (run_ranks, run_threads) if first_planned else (run_threads, run_ranks)
    ranks = (2, 1) if first_planned else (1, 2)
    run[0](ranks[0], resumed, first, str(tmp_path), False, 3)
    found = run[1](ranks[1], resumed, then, str(tmp_path), True, 6)
    want = run_threads(1, resumed, plain, str(tmp_path / "other"), False, 6)[0]
    assert found[0] is not None
    for ours, theirs in zip(found[0], want, strict=True):
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], atol=1e-9, rtol=1e-9)


def loaded(wire: Wire, trial: Trial, folder: str) -> dict[str, Tensor]:
    """The whole parameters and buffers of a job that has loaded a checkpoint."""
    job = make_job(wire, trial)
    job.load(folder)
    job.training.settle()
    named = (*job.model.named_parameters(), *job.model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in named}


@pytest.mark.prove
@pytest.mark.procs
def test_a_checkpoint_goes_to_another_plan_and_to_none(tmp_path: Path) -> None:
    plain = trial_of(Mlp, adam)
    four = planned(plain, "a=2, b=2", SPLIT)
    two = planned(plain, "a=2", Pin("down.*", home=S(0)))
    homes = [t.options["plan"].division.homes for t in (four, two)]
    assert homes[0]["down.weight"].placements != homes[1]["down.weight"].placements
    saved = run_ranks(4, resumed, four, str(tmp_path), False, 3)[0]
    assert saved is not None
    want = {**saved[0], **saved[1]}
    (alone,) = run_threads(1, loaded, plain, str(tmp_path))
    for found in (*run_ranks(2, loaded, two, str(tmp_path)), alone):
        assert found is not None
        assert found.keys() == want.keys()
        assert all(torch.equal(found[name], want[name]) for name in want)


def seen_by_evaluation(wire: Wire, trial: Trial) -> list[tuple[int, float]]:
    """Losses of steps, and of the evaluations between them; nothing else reads."""
    job = make_job(wire, trial, validation=trial.made_data(), evaluate_every=2)
    seen: list[tuple[int, float]] = []

    def watch(_: Job, event: Event) -> None:
        if isinstance(event, StepDone):
            seen.append((event.step, event.loss))
        if isinstance(event, Evaluated):
            seen.append((-event.step, event.metrics["loss"]))

    watch.reads_parameters = False  # type: ignore[attr-defined]
    job.callbacks.append(watch)
    job.fit(5)
    return seen


def test_evaluations_between_steps() -> None:
    trial = trial_of(Mlp, adam)
    (alone,) = run_threads(1, seen_by_evaluation, trial)
    assert [step for step, _ in alone] == [1, 2, -2, 3, 4, -4, 5, -5]
    for found in run_threads(2, seen_by_evaluation, planned(trial, "a=2", SPLIT)):
        for ours, theirs in zip(found, alone, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)


def test_ctrl_c_on_one_rank_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.local()
    monkeypatch.setattr(
        "placet.job.job.requested", lambda: getattr(asked, "stop", False)
    )

    def stopped(wire: Wire) -> tuple[str, int, bool]:
        job = make_job(wire, trial)

        def press(job: Job, event: Event) -> None:
            if isinstance(event, StepDone) and event.step == 2 and job.rank == 0:
                asked.stop = True

        press.reads_parameters = False  # type: ignore[attr-defined]
        job.callbacks.append(press)
        job.fit(9)
        finite = all(bool(p.isfinite().all()) for p in job.model.parameters())
        return job.status, job.step_count, finite

    trial = planned(Trial(Mlp, adam), "a=2", SPLIT)
    assert run_threads(2, stopped) == [("stopped", 3, True)] * 2


@pytest.mark.prove
@pytest.mark.procs
def test_compiled_as_one_rank() -> None:
    trial = Trial(Mlp, adam, steps=5)
    (alone,) = train_on(1, trial)
    two = planned(trial, "a=2", SPLIT)
    two = replace(two, options={**two.options, "compile": True})
    for one in run_ranks(2, train, two, timeout=240.0):
        assert one is not None
        assert_same_run(one, alone, tolerance=1e-9)


def test_how_a_plan_was_found_may_differ() -> None:
    def losses(wire: Wire) -> list[float]:
        found: Plan = trial.options["plan"]
        own = replace(found, search_seconds={"search": float(wire.rank)}, notes=("x",))
        return train(
            wire, replace(trial, options={**trial.options, "plan": own})
        ).losses

    trial = planned(Trial(Mlp, sgd, steps=2), "a=2", SPLIT)
    first, second = run_threads(2, losses)
    assert first == second
