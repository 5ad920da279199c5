"""The command line: what it refuses, what it says, and whole runs through it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from placet.job.cli import BAD_INPUT, app
from placet.job.train import train
from placet.placement.cluster import Cluster
from tests.job.toys import FILE, toys_in

LIMIT_SECONDS = 150.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from toys_in(tmp_path, monkeypatch)


@contextmanager
def placet(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`placet ARGUMENTS` in a folder, ended for certain."""
    process = subprocess.Popen(
        [sys.executable, "-m", "placet", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watch = threading.Timer(LIMIT_SECONDS, process.kill)
    watch.start()
    try:
        yield process
    finally:
        watch.cancel()
        process.kill()
        process.communicate()


def finish(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with placet(folder, *arguments) as process:
        out, err = process.communicate()
    return process.returncode, out, err


def events(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    lines = (run / f"events-rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def steps(run: Path) -> list[int]:
    return [e["step"] for e in events(run) if e["kind"] == "step"]


def only_run(folder: Path, name: str = "toy") -> Path:
    (run,) = (folder / "runs").glob(f"{name}-*")
    return run


def test_cli_help_needs_no_torch():
    code = "import sys, placet.job.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_cli_help_names_commands_and_recipes():
    runner = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    text = runner.invoke(app, ["--help"]).output
    for command in ("train", "report", "lab", "doctor"):
        assert command in text
    text = runner.invoke(app, ["train", "--help"]).output
    assert "char_gpt, digits" in text
    assert "--set" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chargpt"], "the nearest is 'char_gpt'"),
        ([f"{FILE}:toy", "--set", "stps=3"], "the nearest is 'steps'"),
        ([f"{FILE}:toy", "--set", "steps=few"], "steps: int = 4"),
        ([f"{FILE}:tyo"], "the nearest is 'toy'"),
        ([f"{FILE}:toy", "-n", "0"], "at least 1 worker"),
        ([f"{FILE}:toy", "--resume", "latest"], "none of the 0 runs"),
        ([f"{FILE}:toy", "--resume", "absent"], "no such folder"),
        ([f"{FILE}:toy", "--resume", "."], "holds a complete checkpoint"),
    ],
)
def test_cli_train_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == BAD_INPUT
    assert message in result.output + capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_cli_train_under_torchrun_refuses_another_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["train", f"{FILE}:toy", "-n", "4"])
    assert result.exit_code == BAD_INPUT
    assert "torchrun, which has started 2" in result.output


def test_cli_report_of_no_run(folder: Path):
    result = CliRunner().invoke(app, ["report", "absent"])
    assert result.exit_code == BAD_INPUT


@pytest.mark.procs
def test_cli_train_two_ranks_report_and_resume(folder: Path):
    Cluster.here(2).save(folder / "links.toml")
    arguments = ("-n", "2", "--cluster", "links.toml")
    code, out, err = finish(folder, "train", f"{FILE}:toy", *arguments)
    assert code == 0, err
    run = only_run(folder)
    assert f"report: runs/{run.name}/report.html" in out
    assert (run / "report.html").stat().st_size > 1000
    assert steps(run) == [1, 2, 3, 4]
    assert "toy: 2 ranks" in out
    assert "P(sum) -> B @data" in out

    arguments = ("--resume", "latest", "--set", "steps=6", "--run-dir", "second")
    code, out, err = finish(folder, "train", f"{FILE}:toy", *arguments)
    assert code == 0, err
    assert steps(folder / "second") == [5, 6]  # on another number of workers

    code, out, err = finish(folder, "train", f"{FILE}:toy", "--run-dir", "second")
    assert code == BAD_INPUT
    assert "second holds a run already" in err


def test_cli_cluster_must_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("hosts = 3")
    for file, why in ((wrong, "links"), (tmp_path / "no.toml", "No such file")):
        assert train("digits", 2, (), None, tmp_path / "run", file) == BAD_INPUT
        told = capsys.readouterr().err
        assert str(file) in told
        assert why in told
    assert not (tmp_path / "run").exists()


@pytest.mark.procs
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_cli_train_interrupt_saves_and_exits_0(folder: Path, num_ranks: int):
    arguments = ("train", f"{FILE}:endless", "-n", str(num_ranks))
    with placet(folder, *arguments) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "step":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert err.count("stopping after this step, saving") == 1
    assert "stopped, as asked" in out
    run = only_run(folder, "endless")
    last = steps(run)[-1]
    assert (run / "checkpoints" / f"step-{last:08}").is_dir()
    assert events(run)[-1]["status"] == "stopped"


@pytest.mark.procs
@pytest.mark.prove
def test_cli_train_one_rank_raises(folder: Path):
    recipe = f"{FILE}:one_rank_raises"
    code, _, err = finish(folder, "train", recipe, "-n", "2")
    assert code == 1
    assert err.startswith("placet: rank 1 of 2 failed first\n\nTraceback")
    assert "KeyError: 'a problem of rank one'" in err
    assert "in one_rank_raises" in err


@pytest.mark.procs
@pytest.mark.prove
def test_cli_train_more_ranks_than_rows(folder: Path):
    recipe = f"{FILE}:too_many_ranks"
    code, _, err = finish(folder, "train", recipe, "-n", "2")
    assert code == 1
    assert "use at most -n 1" in err


def test_cli_train_recipe_that_returns_no_job(folder: Path):
    code, _, err = finish(folder, "train", f"{FILE}:none")
    assert code == 1
    assert "recipe none returned None, of type NoneType" in err


@pytest.mark.procs
@pytest.mark.prove
def test_cli_train_under_torchrun(folder: Path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "placet", "train", f"{FILE}:toy"]
    done = subprocess.run(
        [*command, "--run-dir", "shared"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert steps(folder / "shared") == [1, 2, 3, 4]
    assert events(folder / "shared", rank=1)
    assert done.stdout.count("report: ") == 1
