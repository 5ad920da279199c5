"""A run that was killed goes on, on another number of workers, with the same curve.

The oracle is one rank in this process that is never interrupted. All is float64, so
curves agree to 1e-6 or rows, order, dropout or learning rate are not those of the step.
"""

import os
import signal
from pathlib import Path

import pytest

from placet.job.checkpoint import manifest_of
from placet.job.checkpoint_folder import newest
from placet.job.events import StepDone
from placet.job.job import Job
from tests.job import small_jobs
from tests.job.processes import (
    END_SECONDS,
    assert_gone,
    assert_no_orphans,
    events,
    losses,
    patience,
    poll,
    run,
    started,
    train,
    worker_pids,
)

STEPS = 16
BATCHES = -(-small_jobs.ROWS // small_jobs.BATCH_ROWS)

pytestmark = pytest.mark.procs


def uninterrupted(steps: int) -> dict[int, float]:
    """The loss of each step, on one rank."""
    found: dict[int, float] = {}

    def note(_: Job, event: object) -> None:
        if isinstance(event, StepDone):
            found[event.step] = event.loss

    job = small_jobs.curve(steps=steps)
    job.callbacks.append(note)
    job.fit()
    return found


def assert_same_curve(found: dict[int, float], expected: dict[int, float]) -> None:
    for step, value in found.items():
        assert value == pytest.approx(expected[step], abs=1e-6), f"step {step}"


def kill_in_save_and_resume(folder: Path, before: int, after: int, zero: int) -> None:
    """4 of `before` steps are saved; in the save of step 8 the last rank dies."""
    expected = uninterrupted(STEPS)
    settings = (f"steps={STEPS}", "save_every=4", f"zero={zero}")
    dying = (f"kill_rank={before - 1}", "kill_at_save=8")
    first = folder / "first"
    ended = run(
        train("curve", "-n", before, *settings, *dying, "--run-dir", first), folder
    )
    assert ended.code == 1
    assert f"rank {before - 1} of {before} was killed by SIGKILL" in ended.err
    left = {path.name for path in (first / "checkpoints").iterdir()}
    assert left == {"step-00000004", "step-00000008.partial"}
    kept = manifest_of(first / "checkpoints")
    assert (kept.step, kept.num_ranks) == (4, before)
    assert 0 < kept.values["progress"]["position"]["index"] < BATCHES, "not mid-epoch"

    second = folder / "second"
    ended = run(
        train(
            *("curve", "-n", after, *settings),
            *("--resume", first, "--run-dir", second),
        ),
        folder,
    )
    assert ended.code == 0, ended.err
    earlier, later = losses(first), losses(second)
    assert set(range(1, 9)) <= set(earlier)
    assert list(later) == list(range(5, STEPS + 1))
    assert_same_curve(earlier, expected)
    assert_same_curve(later, expected)
    assert manifest_of(second / "checkpoints").num_ranks == after


def test_resume_after_kill_in_a_save_on_three_of_four_workers(tmp_path: Path):
    kill_in_save_and_resume(tmp_path, 4, 3, zero=3)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("before", "after", "zero"),
    [(4, 3, 0), (4, 3, 1), (4, 3, 2), (3, 4, 3), (2, 1, 3), (4, 2, 0)],
)
def test_resume_after_kill_in_a_save(
    tmp_path: Path, before: int, after: int, zero: int
):
    kill_in_save_and_resume(tmp_path, before, after, zero)


def test_resume_after_interrupt_latest_on_one_worker(tmp_path: Path):
    """Ctrl-C on two workers saves and exits 0; `--resume latest` goes on alone."""
    expected = uninterrupted(300)
    first, runs = tmp_path / "runs" / "curve-1", tmp_path / "runs"
    runs.mkdir()
    options = ("curve", "-n", 2, "steps=1000000", "zero=1", "--run-dir", first)
    with started(train(*options), tmp_path) as command:
        poll(lambda: len(losses(first)) >= 5, "fifth step")
        command.interrupt()
        ended = command.wait()
        assert_no_orphans(command.mark)
    assert ended.code == 0, ended.err
    assert ended.err.strip().startswith("stopping after this step, saving")
    assert "stopped, as asked" in ended.out
    stopped = max(losses(first))
    assert newest(first / "checkpoints").name == f"step-{stopped:08d}"
    assert events(first, "end")[0]["status"] == "stopped"
    assert (first / "report.html").is_file()

    steps = stopped + 7
    second = tmp_path / "second"
    ended = run(
        train("curve", f"steps={steps}", "--resume", "latest", "--run-dir", second),
        tmp_path,
    )
    assert ended.code == 0, ended.err
    assert list(losses(second)) == list(range(stopped + 1, steps + 1))
    if steps > 300:
        expected = uninterrupted(steps)
    assert_same_curve(losses(first) | losses(second), expected)


def test_killed_launcher_leaves_no_orphans_and_what_was_saved(tmp_path: Path):
    folder = tmp_path / "run"
    options = ("endless", "-n", 2, "save_every=3", "--run-dir", folder)
    with started(train(*options), tmp_path) as command:
        pids = worker_pids(folder, 2)
        poll(lambda: events(folder, "save"), "first checkpoint")
        os.kill(command.process.pid, signal.SIGKILL)
        command.process.wait()
        assert_gone(pids, patience(END_SECONDS))
        assert_no_orphans(command.mark)
    assert manifest_of(folder / "checkpoints").step >= 3
