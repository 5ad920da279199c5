"""Bad input and broken ranks: a clear message, an end in time, and nothing lost."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import placet
from placet.errors import CheckpointError
from placet.job.checkpoint import Checkpoints, Saver, load, manifest_of
from placet.job.checkpoint_folder import newest
from placet.job.interrupt import SAME_PRESS_SECONDS
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

# --- placements ----------------------------------------------------------------------


PLACEMENTS: dict[str, tuple[Callable[[], object], str]] = {
    "too few ranks": (
        lambda: placet.place(torch.ones(4), placet.Mesh("data=2"), [placet.S(0)]),
        "Mesh('data=2') has ranks [1], but this job has 1: start it with -n 2",
    ),
    "no such dim": (
        lambda: placet.place(torch.ones(4), placet.Mesh("data=1"), [placet.S(1)]),
        "cannot place a tensor of shape (4,) as S(1) @data: it has dims 0 to 0",
    ),
    "dim from the back": (
        lambda: placet.S(-2),
        "S(-2): dim must be >= 0; count from the front",
    ),
    "a placement too many": (
        lambda: placet.place(torch.ones(4), placet.Mesh("data=1"), [placet.B] * 2),
        "Mesh('data=1') has 1 axes, got 2 placements [B, B]; give one per axis",
    ),
    "no such axis": (
        lambda: placet.Mesh("data=2").axis_index("model"),
        "Mesh('data=2') has no axis 'model'; its axes are 'data'",
    ),
    "an axis named twice": (
        lambda: placet.Mesh("data=2, data=3"),
        "Mesh('data=2, data=3'): axis 'data' is named twice",
    ),
    "an axis of size 0": (
        lambda: placet.Mesh("data=0"),
        "Mesh('data=0'): axis 'data' needs a size of at least 1",
    ),
    "an axis without size": (
        lambda: placet.Mesh("data"),
        "Mesh('data'): cannot read 'data'; write axes as 'data=2, model=2'",
    ),
}


@pytest.mark.parametrize("case", PLACEMENTS)
def test_placements_that_do_not_fit_are_refused(case: str):
    call, message = PLACEMENTS[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# --- one rank fails ------------------------------------------------------------------


@pytest.mark.procs
@pytest.mark.parametrize(
    "at_step", [0, pytest.param(3, marks=pytest.mark.prove)], ids=["recipe", "step"]
)
def test_a_rank_that_raises_is_told_first_and_ends_the_others(
    tmp_path: Path, at_step: int
):
    folder = tmp_path / "run"
    options = ("raising", "-n", 3, f"at_step={at_step}", "on_rank=2")
    with started(train(*options, "--run-dir", folder), tmp_path) as command:
        pids = worker_pids(folder, 3)
        assert_gone(pids[2:], patience(30))
        began = time.monotonic()
        assert_gone(pids, patience(END_SECONDS))
        ended = command.wait()
        seconds = time.monotonic() - began
        assert_no_orphans(command.mark)
    assert ended.code == 1
    assert ended.err.startswith("placet: rank 2 of 3 failed first\n\nTraceback")
    assert "KeyError: 'no such column: price'" in ended.err
    assert "in fail_on_purpose" in ended.err
    assert ended.err.count("Traceback") == 1
    assert f"run: {folder}" in ended.err
    assert seconds < patience(END_SECONDS)


@pytest.mark.procs
@pytest.mark.parametrize("zero", [0, pytest.param(3, marks=pytest.mark.prove)])
def test_loss_that_is_no_number_names_step_and_parameter(tmp_path: Path, zero: int):
    folder = tmp_path / "run"
    options = ("not_a_number", "-n", 2, f"zero={zero}", "--run-dir", folder)
    ended = run(train(*options), tmp_path)
    assert ended.code == 1
    assert "NonFiniteLoss: step 5: the loss is nan" in ended.err
    assert "in the gradient of 'body.weight'" in ended.err
    assert "docs/errors.md#nonfiniteloss" in ended.err
    assert ended.err.count("Traceback") == 1
    assert "failed alike" in ended.err
    assert list(losses(folder)) == [1, 2, 3, 4]
    assert events(folder, "end")[0]["status"] == "failed"
    assert newest(folder / "checkpoints") == folder / "checkpoints" / "step-00000004"
    job = small_jobs.make(5)
    job.load(folder / "checkpoints")
    assert job.step_count == 4
    assert all(p.isfinite().all() for p in job.model.parameters())
    job.fit()


@pytest.mark.procs
@pytest.mark.prove  # tests/job/test_job_errors.py has them in one process
@pytest.mark.parametrize("what", ["values", "names", "optimizer", "settings"])
def test_ranks_started_differently_are_refused(tmp_path: Path, what: str):
    ended = run(train("different", "-n", 2, f"what={what}"), tmp_path)
    assert ended.code == 1
    assert f"RanksDiffer: ranks [1] differ from rank 0 in {what}: " in ended.err
    named = {
        "values": "first at parameter 'body.weight",
        "names": "'body.weight (12, 7)",
        "optimizer": "Make the same optimizer on every rank",
        "settings": "'clip_norm': 1.0",
    }
    assert named[what] in ended.err
    assert "docs/errors.md#ranksdiffer" in ended.err
    assert ended.err.count("Traceback") == 1


# --- hanging ranks -------------------------------------------------------------------


@pytest.mark.procs
def test_a_rank_that_hangs_is_named_within_the_deadline(tmp_path: Path):
    folder = tmp_path / "run"
    deadline = 4.0
    options = ("endless", "-n", 3, f"timeout_seconds={deadline}")
    with started(train(*options, "--run-dir", folder), tmp_path) as command:
        pids = worker_pids(folder, 3)
        poll(lambda: len(losses(folder)) > 3, "third step")
        os.kill(pids[1], signal.SIGSTOP)
        began = time.monotonic()
        ended = command.wait()
        seconds = time.monotonic() - began
        assert_gone(pids, patience(END_SECONDS))
        assert_no_orphans(command.mark)
    assert ended.code == 1
    named = r"WireTimeout: rank [02]: '[\w.]+' over ranks 0, 1, 2"
    assert re.search(named, ended.err)
    assert "rank 1 gave no answer: paused or dead" in ended.err
    assert "docs/errors.md#wiretimeout" in ended.err
    assert seconds < patience(deadline + 2 * END_SECONDS)


# --- interrupts ----------------------------------------------------------------------


@pytest.mark.procs
@pytest.mark.parametrize("num_ranks", [2, pytest.param(1, marks=pytest.mark.prove)])
def test_two_interrupts_end_at_once(tmp_path: Path, num_ranks: int):
    """A rank that is stopped cannot end its step, so only another press helps."""
    folder = tmp_path / "run"
    options = ("endless", "-n", num_ranks, "save_every=3", "--run-dir", folder)
    with started(train(*options), tmp_path) as command:
        pids = worker_pids(folder, num_ranks)
        poll(lambda: events(folder, "save"), "checkpoint")
        if num_ranks > 1:
            os.kill(pids[1], signal.SIGSTOP)
        command.interrupt()
        assert command.process.stderr is not None
        told = command.process.stderr.readline()
        pressed = time.monotonic() + SAME_PRESS_SECONDS  # sooner it counts as the same
        poll(lambda: time.monotonic() > pressed, "time for a second Ctrl-C")
        began = time.monotonic()
        command.interrupt()
        ended = command.wait()
        seconds = time.monotonic() - began
        assert_no_orphans(command.mark)
    assert told.startswith("stopping after this step, saving")
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert seconds < patience(END_SECONDS)
    assert manifest_of(folder / "checkpoints").step >= 3


# --- checkpoints that cannot be resumed ----------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one good checkpoint of `small_jobs.curve`."""
    folder = tmp_path_factory.mktemp("saved")
    job = small_jobs.make(3)
    job.checkpoints = Checkpoints(folder / "checkpoints")
    job.fit()
    return folder


def cut(checkpoint: Path) -> None:
    path = checkpoint / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-20])


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / "__0_0.distcp").unlink()


def cut_manifest(checkpoint: Path) -> None:
    path = checkpoint / "placet.json"
    path.write_bytes(path.read_bytes()[:100])


def cut_metadata(checkpoint: Path) -> None:
    path = checkpoint / ".metadata"
    path.write_bytes(path.read_bytes()[:30])


def of_another_model(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    saver = Saver(Checkpoints(checkpoint.parent))
    saver.save(3, {"model": {"gate.weight": torch.ones(2)}}, blocking=True)
    saver.close()


def of_another_program(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    torch.save({"weights": torch.ones(2)}, checkpoint / "model.pt")


BROKEN: dict[Callable[[Path], None], str] = {
    cut: r"__0_0\.distcp has \d+ bytes, needed \d+ bytes: the checkpoint is truncated",
    lose_a_file: r"__0_0\.distcp is missing, needed \d+ bytes",
    cut_manifest: r"placet\.json is torn or foreign",
    cut_metadata: r"\.metadata has 30 bytes, needed \d+ bytes",
    of_another_model: r"lacks 'model/body\.bias'.*belongs to another model",
    of_another_program: r"is no checkpoint of placet: it has no placet\.json "
    r"\(found: model\.pt\)",
}


@pytest.mark.parametrize("breaks", BROKEN, ids=lambda breaks: breaks.__name__)
def test_broken_checkpoints_are_refused_and_the_job_is_as_before(
    tmp_path: Path, saved: Path, breaks: Callable[[Path], None]
):
    shutil.copytree(saved, tmp_path / "copy")
    checkpoint = tmp_path / "copy" / "checkpoints" / "step-00000003"
    breaks(checkpoint)
    job = small_jobs.make(3)
    before = {n: p.detach().clone() for n, p in job.model.named_parameters()}
    with pytest.raises(CheckpointError, match=BROKEN[breaks]):
        job.load(checkpoint)
    assert job.step_count == 0
    assert all(torch.equal(before[n], p) for n, p in job.model.named_parameters())


@pytest.mark.procs
def test_resume_from_a_truncated_checkpoint_says_what_is_truncated(
    tmp_path: Path, saved: Path
):
    shutil.copytree(saved, tmp_path / "run")
    cut(tmp_path / "run" / "checkpoints" / "step-00000003")
    options = ("--resume", tmp_path / "run", "--run-dir", tmp_path / "again")
    ended = run(train("curve", *options), tmp_path)
    assert ended.code == 1
    assert re.search(BROKEN[cut], ended.err)
    assert "docs/errors.md#checkpointerror" in ended.err
    assert ended.err.count("Traceback") == 1


# --- the machine ---------------------------------------------------------------------


@pytest.mark.procs
def test_port_in_use_is_named_with_the_way_out(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run(
            train("curve", "--run-dir", tmp_path / "run"),
            tmp_path,
            RANK="0",
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    assert ended.code == 1
    assert f"port in use: rank 0 cannot listen on 127.0.0.1:{port}" in ended.err
    assert "set MASTER_PORT to a free port" in ended.err


@pytest.mark.procs
@pytest.mark.prove  # tests/job/test_data.py has the message in the quick suite
def test_more_workers_than_rows_says_how_many_can_be(tmp_path: Path):
    ended = run(train("digits", "-n", 3, "batch_size=2"), tmp_path)
    assert ended.code == 1
    assert "a global batch of 2 rows (batch_size) cannot give 3 ranks" in ended.err
    assert "use at most -n 2" in ended.err


@pytest.mark.procs
def test_run_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    folder = tmp_path / "file" / "run"
    ended = run(train("curve", "-n", 2, "--run-dir", folder), tmp_path)
    assert ended.code == 2
    assert ended.err == (
        f"placet: the run's folder {folder} cannot be written (Not a directory); name "
        "another one with --run-dir\n"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False, timeout=20)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if done.returncode != 0:
        pytest.skip(f"a small disk needs root: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


@pytest.mark.procs
def test_full_disk_keeps_the_last_checkpoint(tmp_path: Path, small_disk: Path):
    folder = small_disk / "run"
    options = ("endless", "-n", 2, "save_every=3", "--run-dir", folder)
    ended = run(train(*options), tmp_path)
    assert ended.code == 1
    assert "No space left on device" in ended.err
    assert str(folder) in ended.err
    kept = manifest_of(folder / "checkpoints")
    assert kept.step >= 3
    job = small_jobs.make(kept.step + 1)
    load(folder / "checkpoints", {}, partial=True)
    job.load(folder / "checkpoints")
    job.fit()
    assert job.step_count == kept.step + 1
