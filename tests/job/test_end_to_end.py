"""Whole runs of `placet train`, as a user starts them, and what each leaves behind."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from placet.job.checkpoint import manifest_of
from tests.job.processes import Ended, events, losses, poll, run, started, train

pytestmark = pytest.mark.procs

SMALL_GPT = (
    *("width=32", "depth=2", "num_heads=2", "context=32", "batch_size=8"),
    *("evaluate_every=25", "sample_bytes=12"),
)


def only_run(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found


def assert_whole_run(ended: Ended, run_folder: Path, num_ranks: int) -> None:
    """Exit 0, a plan, steps, evaluation, checkpoint, report and trace; exact bytes."""
    assert ended.code == 0, ended.err
    starts = [events(run_folder, "start", rank) for rank in range(num_ranks)]
    ends = [events(run_folder, "end", rank) for rank in range(num_ranks)]
    assert [len(found) for found in starts + ends] == [1] * 2 * num_ranks
    assert {end[0]["status"] for end in ends} == {"done"}
    last = starts[0][0]["last_step"]
    curve = losses(run_folder)
    assert list(curve) == list(range(1, last + 1))
    assert all(math.isfinite(value) for value in curve.values())
    assert len(events(run_folder, "evaluate")) >= 1
    for rank in range(num_ranks):
        boxings = events(run_folder, "boxing", rank)
        assert boxings
        assert (sum(b["sent_bytes"] for b in boxings) > 0) == (num_ranks > 1)
        for boxing in boxings:
            assert boxing["sent_bytes"] == boxing["predicted_sent_bytes"]
            assert boxing["received_bytes"] == boxing["predicted_received_bytes"]
    assert f"{num_ranks} rank" in ended.out
    assert f"done after step {last:,}" in ended.out
    manifest = manifest_of(run_folder / "checkpoints")
    assert (manifest.step, manifest.num_ranks) == (last, num_ranks)
    page = (run_folder / "report.html").read_text()
    assert "<svg" in page
    assert 'src="http' not in page
    trace = json.loads((run_folder / "trace.json").read_text())
    assert trace["traceEvents"]


def train_digits(
    folder: Path, num_ranks: int, *settings: str, arguments: Sequence[str] = ()
) -> Ended:
    ranks = () if arguments else ("-n", num_ranks)
    options = train("digits", *ranks, "width=4", "epochs=1", *settings)
    return run([*arguments, *options], folder)


def test_char_gpt_on_two_workers(tmp_path: Path):
    ended = run(train("char_gpt", "-n", 2, "steps=40", *SMALL_GPT), tmp_path)
    found = only_run(tmp_path)
    assert found.name.startswith("char_gpt-")
    assert_whole_run(ended, found, 2)
    curve = losses(found)
    assert curve[40] < curve[1] - 1
    (result,) = events(found, "result")
    names = [name for name, _ in result["rows"]]
    assert [name.split()[0] for name in names] == ["char_gpt", "order-2", "lzma"]
    for name, bits in result["rows"]:
        assert name in ended.out
        assert f"{bits:.3f}" in ended.out
        assert 0 < bits < 8.1
    assert result["text"].startswith("import os")
    assert "P(sum) -> B @data" in ended.out
    saved = [event["step"] for event in events(found, "save")]
    assert saved == [25, 40], "saved with each evaluation, and at the end"


def test_digits_zero_3_on_two_workers_under_torchrun(tmp_path: Path):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    ended = train_digits(tmp_path, 2, "zero=3", arguments=launcher)
    assert_whole_run(ended, only_run(tmp_path), 2)
    assert "S(0) -> B @data" in ended.out


def test_digits_alone(tmp_path: Path):
    ended = train_digits(tmp_path, 1)
    assert_whole_run(ended, only_run(tmp_path), 1)


@pytest.mark.prove
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_digits_on_several_workers(tmp_path: Path, num_ranks: int, zero: int):
    alone = tmp_path / "alone"
    alone.mkdir()
    assert train_digits(alone, 1).code == 0
    ended = train_digits(tmp_path, num_ranks, f"zero={zero}")
    assert_whole_run(ended, only_run(tmp_path), num_ranks)
    # In float32 the order of a sum shows, and a run of 23 steps makes it larger.
    expected = losses(only_run(alone))
    for step, value in losses(only_run(tmp_path)).items():
        assert value == pytest.approx(expected[step], abs=2e-3), f"step {step}"


@pytest.mark.prove
@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_char_gpt_on_other_numbers_of_workers(tmp_path: Path, num_ranks: int):
    options = ("steps=20", "zero=3", "dropout=0.1", *SMALL_GPT)
    ended = run(train("char_gpt", "-n", num_ranks, *options), tmp_path)
    assert_whole_run(ended, only_run(tmp_path), num_ranks)


@pytest.mark.prove
def test_char_gpt_interrupted_resumes_from_latest_on_other_workers(tmp_path: Path):
    """Some steps on 4 workers, the rest on 3: the curve of one run on 2."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    settings = ("steps=40", "dropout=0.1", "lr=1e-3", *SMALL_GPT)
    ended = run(train("char_gpt", "-n", 2, *settings), whole)
    assert ended.code == 0, ended.err
    with started(train("char_gpt", "-n", 4, *settings), parts) as command:
        poll(lambda: any((parts / "runs").glob("*/events-rank0.jsonl")), "record")
        half = only_run(parts)
        poll(lambda: len(losses(half)) >= 10, "tenth step")
        command.interrupt()
        assert command.wait().code == 0
    assert 10 <= max(losses(half)) < 40
    again = parts / "again"
    options = ("-n", 3, *settings, "--resume", "latest", "--run-dir", again)
    ended = run(train("char_gpt", *options), parts)
    assert ended.code == 0, ended.err
    expected = losses(only_run(whole))
    found = losses(half) | losses(again)
    assert list(found) == list(expected)
    for step, value in found.items():  # float32: sums of parts differ in their order
        assert value == pytest.approx(expected[step], abs=2e-3), f"step {step}"
