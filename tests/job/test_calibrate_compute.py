"""Calibrating what ranks compute: the slowest counts, and a whole run that is kept."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from placet.cost.machine import Machine, machine_here
from placet.job.calibrate_compute import calibrate_compute, slowest
from placet.job.cli import BAD_INPUT, app


def machine(rate: float, *, work: str = "matmul") -> Machine:
    return Machine("x", ((work, "float32", rate),), rate / 2, 1 / rate, num_ranks=2)


def test_the_slowest_rank_counts():
    assert slowest([machine(5.0), machine(3.0), machine(4.0)]) == machine(3.0)
    with pytest.raises(ValueError, match="each kind of device alone"):
        slowest([machine(5.0), machine(5.0, work="attention")])


@pytest.mark.procs
def test_two_ranks_measure_at_once_and_it_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrate_compute(2, seconds=0.5) == 0
    assert "matmul, float32" in capsys.readouterr().out
    kept = machine_here()
    assert kept.num_ranks == 2
    assert [file.name for file in (tmp_path / "placet").glob("machine-*")]


@pytest.mark.parametrize("options", [[], ["--links", "--compute"]])
def test_what_to_measure_must_be_said(options: list[str]):
    result = CliRunner().invoke(app, ["calibrate", *options])
    assert result.exit_code == BAD_INPUT
    assert "add --links or --compute" in result.output


def test_a_cluster_file_is_for_links():
    options = ["calibrate", "--compute", "--cluster-out", "c.toml"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == BAD_INPUT
    assert "--cluster-out is for --links" in result.output
