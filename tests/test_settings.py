"""The environment, as the rest of placet sees it."""

from pathlib import Path

import pytest

from placet import settings
from placet.settings import (
    Worker,
    child_environment,
    network_interface,
    run_dir,
    set_run_dir,
    worker,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch):
    for name in (*TORCHRUN, *settings.NAMES):
        monkeypatch.delenv(name, raising=False)


def give(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_worker_is_none_outside_a_job():
    assert worker() is None


def test_worker_reads_what_torchrun_says(monkeypatch: pytest.MonkeyPatch):
    give(monkeypatch, TORCHRUN)
    assert worker() == Worker(3, 8, 1, 2, "10.0.0.1", 29500)
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert worker() == Worker(3, 8, 3, 8, "10.0.0.1", 29500)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_ADDR": None}, "RANK=3 is set but MASTER_ADDR not"),
        ({"RANK": "8"}, "RANK=8 does not fit WORLD_SIZE=8: ranks are 0 to 7"),
        ({"RANK": "one"}, "RANK must be a whole number, got 'one'"),
        ({"RANK": "-1"}, "RANK must be a whole number, got '-1'"),
        ({"MASTER_PORT": ""}, "MASTER_PORT must be a whole number, got ''"),
    ],
)
def test_worker_refuses(monkeypatch: pytest.MonkeyPatch, change, message: str):
    given = {k: v for k, v in {**TORCHRUN, **change}.items() if v is not None}
    give(monkeypatch, given)
    with pytest.raises(ValueError, match=message):
        worker()


def test_network_interface_is_gloos(monkeypatch: pytest.MonkeyPatch):
    for given, expected in {"": None, "eth1": "eth1", "eth1,eth2": "eth1,eth2"}.items():
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", given)
        assert network_interface() == expected
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert network_interface() is None


def test_run_dir_is_what_was_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert run_dir() is None
    monkeypatch.setenv(settings.RUN_DIR, "")  # so that the test's end removes it
    assert run_dir() is None
    set_run_dir(tmp_path)
    assert run_dir() == tmp_path
    assert child_environment({"A": "1"})[settings.RUN_DIR] == str(tmp_path)


def test_child_environment_puts_the_new_over_the_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "3")
    child = child_environment({"RANK": "4", "NEW": "x"})
    assert (child["RANK"], child["NEW"]) == ("4", "x")
    assert worker_variable() == "3"


def worker_variable() -> str:
    return child_environment({})["RANK"]
