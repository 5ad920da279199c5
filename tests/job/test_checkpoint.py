"""Checkpoints are complete or not there, and load on any number of ranks."""

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from placet.errors import CheckpointError
from placet.job.checkpoint import Checkpoints, Saver, load, manifest_of
from placet.job.checkpoint_folder import newest, tidy
from placet.job.checkpoint_format import TensorEntry, decode, encode, leaves

TRIALS = Path(__file__).with_name("checkpoint_trials.py")


def run_trial(name, folder, *numbers, timeout=200):
    """Run one of checkpoint_trials.py in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(TRIALS), name, str(folder), *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def make_state():
    return {
        "model": {"a": torch.arange(12.0).view(3, 4), "b": torch.tensor(2.5)},
        "optimizer": {
            "state": {0: {"m": torch.ones(5, dtype=torch.bfloat16)}},
            "groups": [{"lr": torch.tensor(0.1), "betas": (0.9, 0.95), "params": [0]}],
        },
        "scheduler": {"milestones": Counter({3: 2}), "best": float("inf"), 7: None},
        "raw": b"\x00\xff",
        "step": 3,
    }


def blank_state():
    state = make_state()
    for leaf in leaves(state):
        if isinstance(leaf.value, torch.Tensor):
            leaf.value.zero_()
        else:
            leaf.put(None)
    return state


def save(folder, step=3, state=None, **settings):
    saver = Saver(Checkpoints(folder, **settings))
    saved = saver.save(step, state or make_state(), blocking=True)
    saver.close()
    return saved


def same_leaves(a, b):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert x.key == y.key
        if isinstance(x.value, torch.Tensor):
            assert torch.equal(x.value, y.value), x.key
            assert x.value.dtype == y.value.dtype
        else:
            assert x.value == y.value, x.key
            assert type(x.value) is type(y.value), x.key


def test_checkpoint_gives_back_tensors_and_values(tmp_path):
    saved = save(tmp_path)
    assert saved.path == tmp_path / "step-00000003"
    assert saved.num_bytes == sum(p.stat().st_size for p in saved.path.iterdir())
    for path in (tmp_path, saved.path):
        state = blank_state()
        assert load(path, state) == 3
        same_leaves(state, make_state())
    manifest = manifest_of(tmp_path)
    assert manifest.tensors["model/a"] == TensorEntry((3, 4), "torch.float32")
    assert manifest.values["step"] == 3


def test_checkpoint_is_of_the_moment_of_the_call(tmp_path):
    state = make_state()
    saver = Saver(Checkpoints(tmp_path))
    assert saver.save(3, state) is None
    for leaf in leaves(state):
        if isinstance(leaf.value, torch.Tensor):
            leaf.value.fill_(-1)
    state["scheduler"]["best"] = 0.0
    assert saver.close().step == 3
    loaded = blank_state()
    load(tmp_path, loaded)
    same_leaves(loaded, make_state())


def test_checkpoint_keeps_the_newest(tmp_path):
    checkpoints = Checkpoints(tmp_path, every_steps=2, keep=2)
    assert [s for s in range(1, 7) if checkpoints.is_due(s)] == [2, 4, 6]
    saver = Saver(checkpoints)
    told = [saver.save(s, {"x": torch.tensor(s)}) for s in (2, 4, 6)]
    assert told[0] is None
    assert [saved.step for saved in told[1:]] == [2, 4]
    assert saver.close().step == 6
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["step-00000004", "step-00000006"]
    assert newest(tmp_path).name == "step-00000006"
    save(tmp_path, 1, {"x": torch.tensor(1)})  # older, but just written
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-00000001",
        "step-00000006",
    ]


def test_checkpoint_saved_again_replaces_itself(tmp_path):
    save(tmp_path, 1, {"x": torch.tensor(1)})
    save(tmp_path, 1, {"x": torch.tensor(2)})
    state = {"x": torch.tensor(0)}
    assert load(tmp_path, state) == 1
    assert state["x"] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_checkpoint_tidy_removes_leftovers_and_restores_a_replaced_one(tmp_path):
    save(tmp_path, 1, {"x": torch.tensor(1)})
    (tmp_path / "step-00000001").rename(tmp_path / "step-00000001.old")
    (tmp_path / "step-00000002.partial").mkdir()
    (tmp_path / "mine.partial").mkdir()
    assert load(tmp_path, {"x": torch.tensor(0)}) == 1
    tidy(tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["mine.partial", "step-00000001"]


def test_checkpoint_failure_in_the_background_surfaces_and_loses_nothing(tmp_path):
    saver = Saver(Checkpoints(tmp_path))
    saver.save(1, {"x": torch.tensor(1)}, blocking=True)
    (tmp_path / "step-00000002.partial").write_text("in the way")
    saver.save(2, {"x": torch.tensor(2)})
    with pytest.raises(CheckpointError, match=r"step 2 could not be written .*partial"):
        saver.save(3, {"x": torch.tensor(3)})
    assert load(tmp_path, {"x": torch.tensor(0)}) == 1
    (tmp_path / "step-00000002.partial").unlink()
    saver.save(4, {"x": torch.tensor(4)})
    saver.close()
    assert load(tmp_path, {"x": torch.tensor(0)}) == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [({"f": print}, "builtin_function_or_method at 'x'"), ({1j}, "set at 'x'")],
)
def test_checkpoint_refuses_values_it_could_not_load(tmp_path, value, message):
    saver = Saver(Checkpoints(tmp_path))
    with pytest.raises(ValueError, match=message):
        saver.save(1, {"x": value})
    with pytest.raises(ValueError, match="tuple at 'y/z'"):
        saver.save(1, {"y": {"z": (torch.zeros(1),), "w": torch.zeros(1)}})
    saver.close()
    assert newest(tmp_path) is None


def test_checkpoint_values_survive_json():
    value = {"a": (1, [2.5, None]), 3: True, (1, 2): "x", "tuple": {"dict": []}}
    text = json.dumps(encode(value, "x"))
    assert decode(json.loads(text)) == value


def changed(**changes):
    state = {"a": torch.zeros(3, 4), "b": torch.zeros(2), "n": 1}
    state.update(changes)
    return {k: v for k, v in state.items() if v is not ...}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            changed(a=torch.zeros(4, 4)),
            r"float32 \(3, 4\) for 'a', the job needs float32 \(4",
        ),
        (changed(a=torch.zeros(3, 4).double()), r"the job needs float64 \(3, 4\)"),
        (changed(a=..., aa=torch.zeros(1)), "lacks 'aa', .*nearest there: 'a'"),
        (changed(b=...), "has 'b', which the job has not"),
        (changed(n=...), "has 'n', which the job has not"),
        (changed(n=torch.zeros(1)), "a plain value for 'n'"),
        (changed(b=0), r"float32 \(2,\) for 'b', the job needs a value"),
    ],
)
def test_checkpoint_of_another_model_is_refused(tmp_path, state, message):
    save(tmp_path, 1, changed())
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, state)
    assert all(
        not x.value.any() for x in leaves(state) if isinstance(x.value, torch.Tensor)
    )


def test_checkpoint_loads_a_part_when_asked(tmp_path):
    save(tmp_path, 1, changed(b=torch.ones(2)))
    state = {"b": torch.zeros(2)}
    assert load(tmp_path, state, partial=True) == 1
    assert state["b"].tolist() == [1, 1]


def test_checkpoint_torn_files_are_refused(tmp_path):
    """Every file cut at many lengths, and every file gone."""
    path = save(tmp_path, 1, changed()).path
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for size in sorted({0, 1, len(whole) // 2, len(whole) - 1}):
            file.write_bytes(whole[:size])
            with pytest.raises(CheckpointError, match=file.name):
                load(tmp_path, changed())
        file.unlink()
        with pytest.raises(CheckpointError, match=file.name):
            load(tmp_path, changed())
        file.write_bytes(whole)
    assert load(tmp_path, changed()) == 1


class Evil:
    def __reduce__(self):
        return os.system, ("exit 3",)


def test_checkpoint_runs_no_code_from_its_files(tmp_path):
    path = save(tmp_path, 1, changed()).path
    for name, content in (
        (".metadata", pickle.dumps(Evil())),
        (".metadata", pickle.dumps({"no": "metadata"})),
    ):
        whole = (path / name).read_bytes()
        manifest = json.loads((path / "placet.json").read_bytes())
        manifest["files"][name] = len(content)
        (path / "placet.json").write_text(json.dumps(manifest))
        (path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"not allowed|holds a dict"):
            load(tmp_path, changed())
        (path / name).write_bytes(whole)


def test_checkpoint_mixed_from_two_models_is_refused(tmp_path):
    one = save(tmp_path / "1", 1, {"a": torch.zeros(4)}).path
    two = save(tmp_path / "2", 1, {"a": torch.zeros(5)}).path
    manifest = json.loads((one / "placet.json").read_bytes())
    metadata = (two / ".metadata").read_bytes()
    manifest["files"][".metadata"] = len(metadata)
    (one / "placet.json").write_text(json.dumps(manifest))
    (one / ".metadata").write_bytes(metadata)
    with pytest.raises(CheckpointError, match="does not belong to"):
        load(one, {"a": torch.zeros(4)})


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda f: None, "no such folder"),
        (lambda f: f.mkdir(), "no complete checkpoint"),
        (lambda f: (f / "step-00000002.partial").mkdir(parents=True), "no complete"),
        (lambda f: (f / "step-00000002").mkdir(parents=True), "no placet.json"),
    ],
)
def test_checkpoint_that_is_not_there(tmp_path, prepare, message):
    prepare(tmp_path / "f")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "f", {"a": torch.zeros(1)})


def test_checkpoint_of_another_program_is_refused(tmp_path):
    path = save(tmp_path, 1, changed()).path
    (path / "placet.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint of placet"):
        load(path, changed())
    (path / "placet.json").write_text('{"placet_checkpoint": 9}')
    with pytest.raises(CheckpointError, match="format 9"):
        load(path, changed())


def test_checkpoint_settings_are_checked():
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(Path("x"), keep=0)
    with pytest.raises(ValueError, match="every_steps=0"):
        Checkpoints(Path("x"), every_steps=0)


@pytest.mark.procs
def test_checkpoint_killed_at_every_call_on_the_file_system(tmp_path):
    run_trial("kill_at_every_event", tmp_path)


@pytest.mark.procs
@pytest.mark.parametrize("num_trials", [3, pytest.param(60, marks=pytest.mark.prove)])
def test_checkpoint_two_ranks_killed_at_random_instants(tmp_path, num_trials):
    run_trial("kill_at_random", tmp_path, num_trials, timeout=60 + 10 * num_trials)


@pytest.mark.procs
def test_checkpoint_failure_of_one_rank_is_told_on_all(tmp_path):
    run_trial("full_disk", tmp_path)


@pytest.mark.procs
def test_checkpoint_resumes_on_fewer_ranks_with_the_same_curve(tmp_path):
    run_trial("resume", tmp_path)


@pytest.mark.procs
@pytest.mark.parametrize("full", [0, pytest.param(1, marks=pytest.mark.prove)])
def test_checkpoint_reshards_between_any_numbers_of_ranks(tmp_path, full):
    run_trial("reshard", tmp_path, full)
