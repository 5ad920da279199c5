"""The runner of the long suites: what it finds, what it skips, what it keeps."""

import subprocess
from pathlib import Path

import pytest

from bench import prove
from bench.prove import Ran, State, Suite, counts_of, fingerprint, load, save, suites

ROOT = Path(__file__).parents[2]


def ran(name: str, exit_code: int) -> Ran:
    return Ran(name, "command", exit_code, 1.0, {"passed": 3})


def test_suites_are_the_test_folders_and_the_benches(tmp_path: Path):
    for name, text in {
        "tests/wire/test_x.py": "",
        "tests/plans/x.txt": "",
        "bench/speed.py": 'if __name__ == "__main__":\n    sys.exit(run_bench("x"))\n',
        "bench/harness.py": "def run_bench(): ...\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert suites(tmp_path) == [
        Suite("tests/wire", ("-m", "pytest", "-q", "-m", "prove", "tests/wire")),
        Suite("bench/speed", ("-m", "bench.speed")),
    ]
    assert "tests/job" in [suite.name for suite in suites(ROOT)]
    assert "bench/harness" not in [suite.name for suite in suites(ROOT)]


def test_state_skips_what_passed_and_repeats_what_failed(tmp_path: Path):
    all_suites = [Suite(name, ()) for name in ("a", "b", "c", "d")]
    state = State("now", {})
    for done in (ran("a", 0), ran("b", 1), ran("c", prove.NO_TESTS)):
        state = state.after(done)
    assert [s.name for s in state.left(all_suites)] == ["b", "d"]
    save(state, tmp_path / "state" / "prove.json")
    assert load(tmp_path / "state" / "prove.json", "now") == state
    assert load(tmp_path / "state" / "prove.json", "changed") == State("changed", {})
    assert load(tmp_path / "none.json", "now") == State("now", {})


def test_fingerprint_changes_with_the_code_and_not_with_results(tmp_path: Path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=20)
    (tmp_path / "a.py").write_text("x = 1\n")
    first = fingerprint(tmp_path)
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "bench" / "results" / "r.json").write_text("{}")
    assert fingerprint(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    assert fingerprint(tmp_path) != first
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "new.py").write_text("")
    assert fingerprint(tmp_path) != first


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("x\n3 passed, 1 failed, 2 skipped in 4.5s\n", "passed 3 failed 1 skipped 2"),
        ("== 1 passed, 2 errors in 0.1s ==", "passed 1 error 2"),
        ("12 passed in 1s\nand no more", "passed 12"),
        ("no tests ran in 0.1s", ""),
    ],
)
def test_counts_are_read_from_the_closing_line(output: str, counts: str):
    words = counts.split()
    assert counts_of(output) == {
        name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)
    }


def test_run_reports_the_exit_code_and_kills_what_hangs():
    assert prove.run(Suite("ok", ("-c", "print('fine')"))).exit_code == 0
    assert prove.run(Suite("bad", ("-c", "raise SystemExit(3)"))).exit_code == 3
    hung = Suite("hung", ("-c", "import time; time.sleep(100)"))
    found = prove.run(hung, timeout_seconds=0.5)
    assert found.exit_code == -9
    assert found.seconds < 20


def test_main_goes_on_where_it_stopped(monkeypatch, tmp_path: Path, capsys):
    listed = [Suite("tests/a", ()), Suite("tests/b", ())]
    codes = {"tests/a": [0], "tests/b": [1, 0]}
    monkeypatch.setattr(prove, "STATE", tmp_path / "prove.json")
    monkeypatch.setattr(prove, "suites", lambda root: listed)
    monkeypatch.setattr(prove, "fingerprint", lambda root: "now")
    monkeypatch.setattr(prove, "run", lambda s: ran(s.name, codes[s.name].pop(0)))
    monkeypatch.setattr(prove, "write_result", lambda *_: prove.ROOT / "r.json")
    monkeypatch.setattr(prove.docs, "main", lambda _: 0)
    assert prove.main([]) == 1
    assert prove.main([]) == 0
    assert codes == {"tests/a": [], "tests/b": []}
    assert prove.main(["--list"]) == 0
    assert "passed     tests/b" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        prove.main(["--only", "nowhere"])
    assert "no suite's name holds 'nowhere'" in capsys.readouterr().err
