"""The long suites and all benches, one after another; goes on where it stopped.

    python -m bench.prove                what is left, then the dated JSON and the page
    python -m bench.prove --list         what there is, and how it stands
    python -m bench.prove --only wire    the suites whose name holds "wire"
    python -m bench.prove --again        from the start

What has passed on this very state of the code is not run again; what failed is.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bench.docs as docs
from bench.harness import RESULTS, ROOT, commit, machine, write_result

STATE = ROOT / "build" / "prove.json"
NO_TESTS = 5  # pytest's exit code
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
_TIMEOUT_SECONDS = 7200.0  # the wire soaks for 20 minutes


@dataclass(frozen=True)
class Suite:
    """One thing to run."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Ran:
    """How a suite ended."""

    name: str
    command: str
    exit_code: int
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it passed, or had nothing to run."""
        return self.exit_code in (0, NO_TESTS)


@dataclass(frozen=True)
class State:
    """What has run on one state of the code."""

    fingerprint: str
    ran: dict[str, Ran]

    def left(self, suites: Sequence[Suite]) -> list[Suite]:
        """The suites that have not passed yet, in order."""
        return [s for s in suites if s.name not in self.ran or not self.ran[s.name].ok]

    def after(self, ran: Ran) -> "State":
        """The state with one more suite."""
        return State(self.fingerprint, {**self.ran, ran.name: ran})


def suites(root: Path) -> list[Suite]:
    """The long tests, a folder at a time, and each bench."""
    found = []
    for folder in sorted((root / "tests").iterdir()):
        if folder.is_dir() and any(folder.rglob("test_*.py")):
            where = folder.relative_to(root).as_posix()
            command = ("pytest", "-q", "-m", "prove", where)
            found.append(Suite(where, ("-m", *command)))
    for path in sorted((root / "bench").glob("*.py")):
        if re.search(r"^    sys\.exit\(run_bench\(", path.read_text(), re.MULTILINE):
            found.append(Suite(f"bench/{path.stem}", ("-m", f"bench.{path.stem}")))
    return found


def counts_of(output: str) -> dict[str, int]:
    """pytest's closing counts; empty for what is not pytest's."""
    lines = [line for line in output.splitlines() if _COUNTS.search(line)]
    if not lines:
        return {}
    return {name.rstrip("s"): int(n) for n, name in _COUNTS.findall(lines[-1])}


def fingerprint(root: Path) -> str:
    """Names the state of the code: every tracked or new file's content."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    digest = hashlib.sha256()
    for name in sorted(listed.stdout.split(b"\0")):
        path = root / os.fsdecode(name)
        made = name.startswith((b"bench/results/", b"docs/benchmarks.md"))
        if name and path.is_file() and not made:
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def load(path: Path, now: str) -> State:
    """What had run on this state of the code; nothing if the code has changed since."""
    if not path.exists():
        return State(now, {})
    kept = json.loads(path.read_text())
    if kept["fingerprint"] != now:
        return State(now, {})
    return State(now, {name: Ran(**ran) for name, ran in kept["ran"].items()})


def save(state: State, path: Path) -> None:
    """Write the state, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(state), indent=1))
    partial.replace(path)


def run(suite: Suite, timeout_seconds: float = _TIMEOUT_SECONDS) -> Ran:
    """Run one suite, showing what it prints; a suite that runs too long is killed."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *suite.command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nkilled after {timeout_seconds:g} s\n"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    print(output, flush=True)
    return Ran(
        name=suite.name,
        command=f"python {' '.join(suite.command)}",
        exit_code=process.returncode,
        seconds=round(time.monotonic() - began, 1),
        counts=counts_of(output) if "pytest" in suite.command else {},
    )


def as_json(state: State, found: Sequence[Suite]) -> dict[str, Any]:
    """The dated result of all suites."""
    ran = [state.ran[s.name] for s in found if s.name in state.ran]
    return {
        "name": "prove",
        "date": datetime.date.today().isoformat(),
        "command": "make prove",
        "machine": machine(),
        "commit": commit(),
        "seconds": round(sum(r.seconds for r in ran), 1),
        "suites": [asdict(r) | {"ok": r.ok} for r in ran],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.prove", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="show, run nothing")
    parser.add_argument("--only", default="", help="suites whose name holds this")
    parser.add_argument("--again", action="store_true", help="forget what has passed")
    given = parser.parse_args(arguments)
    found = [s for s in suites(ROOT) if given.only in s.name]
    if not found:
        parser.error(f"no suite's name holds {given.only!r}; see --list")
    now = fingerprint(ROOT)
    state = State(now, {}) if given.again else load(STATE, now)
    if given.list:
        for suite in found:
            print(f"{standing(state, suite):10} {suite.name}")
        return 0
    for suite in state.left(found):
        print(f"== {suite.name}: python {' '.join(suite.command)}", flush=True)
        state = state.after(run(suite))
        save(state, STATE)
    for suite in found:
        print(f"{standing(state, suite):10} {suite.name}")
    if not given.only:
        path = write_result(as_json(state, found), RESULTS)
        print(f"written to {path.relative_to(ROOT)}")
        docs.main([])
    return 1 if state.left(found) else 0


def standing(state: State, suite: Suite) -> str:
    """How a suite stands, in a word."""
    ran = state.ran.get(suite.name)
    if ran is None:
        return "left"
    return "nothing" if ran.exit_code == NO_TESTS else "passed" if ran.ok else "failed"


if __name__ == "__main__":
    sys.exit(main())
