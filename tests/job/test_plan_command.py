"""`placet plan`: what it refuses, with exit code 2, and the size of its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from placet.job.plan_command import BAD_INPUT, Question, run
from placet.job.train import train
from placet.placement.mesh import Mesh
from placet.planner.plan import Plan
from placet.planner.planning import plan
from testing.models.zoo import REAL
from tests.job.toys import FILE, toys_in


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from toys_in(tmp_path, monkeypatch)


def asked(**options: Any) -> int:
    """The exit code of a question about the toy."""
    given = {"target": f"{FILE}:toy", "objective": "bytes", **options}
    return run(Question(**given))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cluster": "nowhere"}, "--cluster nowhere: No such file"),
        ({"num_ranks": 0}, "-n 0: a plan needs at least 1 rank"),
        ({"num_ranks": 3, "cluster": "gpus16"}, "has 16 ranks"),
        ({"num_ranks": 2, "memory": "10B"}, "no plan for 2 ranks fits in 10 B a rank"),
        ({"num_ranks": 2, "memory": "8 gigs"}, "memory='8 gigs': write a size such as"),
        ({"num_ranks": 2, "memory": "-8GiB"}, "memory='-8GiB': write a size such as"),
        ({"num_ranks": 2, "mesh": "a=3"}, "--mesh 'a=3' has 3 ranks, there are 2"),
        ({"mesh": "a=4", "cluster": "gpus16"}, "has 4 ranks, there are 16"),
        ({"num_ranks": 2, "mesh": "a=x"}, "a=x"),
        ({"objective": "fame"}, "choose bytes or seconds"),
        ({"target": f"{FILE}:none", "num_ranks": 2}, "gives no Job"),
        ({"target": f"{FILE}:nothing"}, "nothing"),
        ({"assignments": ("depth=3",)}, "depth"),
        ({"num_ranks": 2, "explained": "wieght"}, "the nearest is 'weight'"),
        ({"num_ranks": 2, "out": Path("no/such/folder.json")}, "No such file"),
        ({"num_ranks": 2, "out": Path()}, "--out .: Is a directory"),
        ({"num_ranks": 2, "gap": -0.1}, "gap=-0.1: give a part of the bound"),
        ({"num_ranks": 2, "time_limit_seconds": 0.0}, "give a time above 0"),
    ],
)
def test_bad_input(
    options: dict[str, Any],
    said: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(**options) == BAD_INPUT
    told = capsys.readouterr()
    assert told.err.startswith("placet: ")
    assert said in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    "options", [{"out": Path("no/plan.json")}, {"explained": "nobody"}]
)
def test_what_the_answer_could_not_show_is_refused_before_the_search(
    options: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[object] = []
    monkeypatch.setattr("placet.job.plan_command.search", searched.append)
    assert asked(num_ranks=2, **options) == BAD_INPUT
    assert not searched


def test_errors_of_the_recipe_itself_are_raised_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(KeyError, match="a problem of rank one"):
        asked(target=f"{FILE}:one_rank_raises", num_ranks=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [("[[hosts]\n", "bad.toml: "), ("hosts = 3\n", "bad.toml: ")],
)
def test_a_cluster_file_that_is_none(
    text: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.toml").write_text(text)
    assert asked(cluster="bad.toml") == BAD_INPUT
    assert said in capsys.readouterr().err


def test_the_plan_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "plan.json"
    assert asked(num_ranks=2, out=path, explained="weight") == 0
    assert Plan.load(path).mesh.num_ranks == 2
    told = capsys.readouterr()
    assert "<- the plan" in told.out
    assert told.err == ""
    assert train(f"{FILE}:toy", 3, (), None, None, plan=str(path)) == BAD_INPUT
    assert "2 workers, not 3: start it with -n 2" in capsys.readouterr().err
    assert train(f"{FILE}:toy", 2, (), None, None, plan="atuo") == BAD_INPUT
    assert "--plan atuo: there is no such file" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_a_search_that_ran_out_of_time_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "plan.json"
    assert asked(num_ranks=4, out=path, time_limit_seconds=1e-9) == 0
    told = capsys.readouterr()
    assert not Plan.load(path).is_complete
    assert "  stopped  by its time limit" in told.out
    assert "the search was stopped by its time limit" in told.err


@pytest.mark.prove
def test_a_large_models_file_is_small() -> None:
    example = REAL["GPT-2 XL"]
    with torch.device("meta"):
        model, batch = example.model_fn(), example.batch_fn()
    found = plan(
        model,
        batch,
        example.loss,
        mesh=Mesh("a=4, b=4"),
        objective="bytes",
        time_limit_seconds=60.0,
    )
    assert len(found.to_json().encode()) <= 100_000
